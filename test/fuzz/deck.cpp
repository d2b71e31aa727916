// Fuzzes decks: a JSON text and, after a line of "--", overrides, one per line. An accepted deck
// must be the same deck when its resolved form is read.
#include "choir/deck/deck.hpp"
#include "test/fuzz/fuzz.hpp"
#include "test/support/families.hpp"

namespace choir::fuzz {

std::vector<std::string> seeds() {
  return {R"({"model": {"type": "gpt", "n_layer": 2, "n_head": 4, "n_embd": 64, "block_size": 32},
 // what it learns
 "data": {"train": ["a.txt", "b.tok"], "val": []}, "train": {"max_steps": 100,
 "micro_batch_size": 4, "global_batch_size": 16}, "run": {"walltime": "01:30:00", "seed": 7}})",
          "{}\n--\nmodel.n_layer=12\ntrain.precision=bf16-mixed\ndata.train=[\"a\",\"b\"]\nrun."
          "walltime=3600",
          R"({"model": {"type": "fastconformer", "vocab_size": 128}, "data": {"train": ["speech"],
 "input_cfg": "[{\"folder\": \"a\", \"weight\": 2}]"}, "parallel": {"tensor": 2, "zero": 3}})",
          "{\"optimizer\": {\"learning_rate\": 1e-3, \"beta2\": 0.95}, \"sources\": {\"run.seed\": "
          "\"default\"}}"
          "\n--\noptimizer.warmup_steps=10\nparallel.pipeline=4\nparallel.schedule=zb-h1"};
}

void try_input(std::string_view input) {
  std::string_view rest = input;
  const std::string text(cut(rest, "\n--\n"));
  std::vector<std::string> overrides;
  while (!rest.empty()) overrides.emplace_back(cut(rest, "\n"));
  Deck deck;
  if (!accepted([&] { deck = parse_deck(test::families(), text, "fuzz.json", overrides); })) return;
  const std::string resolved = resolved_json(deck);
  Deck again;
  const bool taken =
      accepted([&] { again = parse_deck(test::families(), resolved, "fuzz.json", {}); });
  require(taken, "a resolved deck is refused");
  require(deck_digest(deck) == deck_digest(again), "a resolved deck is another deck");
  require(!deck_listing(deck, false).empty(), "a deck without a listing");
}

}  // namespace choir::fuzz
