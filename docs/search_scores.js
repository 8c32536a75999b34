// How the site's search orders what it finds: a name written in full (100, see names_in_search.py),
// then titles, then names that hold the words, then text. A name is shown before its page's title.
var Scorer = {
  score: (result) => {
    const [, title, anchor, , score] = result;
    const name = /^#(.+)-row\d*$/.exec(anchor ?? "");
    if (name) result[1] = `${name[1]} (${title})`;
    return score;
  },
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 90,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
