// The data of the page: nodes, their rows, and their positions among the training nodes.
const data = JSON.parse(document.getElementById('report-data').textContent);
const rows = data.rows;
const COUNT = rows.node.length;

const rowOf = new Map(rows.node.map((node, row) => [node, row]));
const trainingIndexOf = new Map(data.training.node.map((node, index) => [node, index]));

function nameOf(node) {
  const row = rowOf.get(node);
  if (rows.name && row !== undefined) return rows.name[row];
  if (data.training.name.length && trainingIndexOf.has(node)) return data.training.name[trainingIndexOf.get(node)];
  return String(node);
}

const neighboursOf = (() => {
  let lists = null; // built at first use
  return (node) => {
    if (lists === null) {
      lists = new Map();
      const pairs = data.edges.pairs;
      const add = (a, b) => { if (lists.has(a)) lists.get(a).push(b); else lists.set(a, [b]); };
      for (let k = 0; k < pairs.length; k += 2) { add(pairs[k], pairs[k + 1]); add(pairs[k + 1], pairs[k]); }
    }
    return lists.get(node) ?? [];
  };
})();

const isWrong = (row) => data.kind === 'classes' && rows.truth[row] !== null && rows.truth[row] !== rows.prediction[row];
