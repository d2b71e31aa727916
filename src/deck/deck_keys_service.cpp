#include "deck_tables.hpp"

namespace choir::deck {
namespace {

/// "" for a value of checkpoint.init_from, else what is wrong with it.
std::string legal_start(const KeyValue& value) {
  const auto* map = std::get_if<TextMap>(&value);
  if (map == nullptr)
    return std::get<std::string>(value).starts_with('{')
               ? "not valid JSON; expected a path, or {PATTERN: PATH}"
               : "";
  if (map->empty()) return "an object without patterns; expected a path, or {PATTERN: PATH}";
  for (const auto& [pattern, path] : *map) {
    if (pattern.empty()) return "an empty pattern, which matches no parameter";
    if (path.empty()) return fmt::format("no path for '{}'", pattern);
  }
  return {};
}

}  // namespace

void add_eval_keys(Table& table) {
  auto eval = table.section("eval", &Deck::eval);
  eval.add("interval", &EvalSection::interval, "steps", "Steps between evaluations. 0: never.")
      .at_least(0);
}

void add_service_keys(Table& table) {
  auto checkpoint = table.section("checkpoint", &Deck::checkpoint);
  checkpoint
      .add("interval", &CheckpointSection::interval, "steps",
           "Steps between checkpoints. 0: never, not even at the end. auto: as many as lose least "
           "time to saves and to failures (Young and Daly), from what saves cost here.")
      .at_least(0)
      .or_word("auto", CheckpointSection::kAutoInterval);
  checkpoint
      .add("mtbf", &CheckpointSection::mtbf, "hours",
           "Mean time between failures of the whole job, for interval auto and for advice. 0: 1000 "
           "hours a node divided by the nodes, at most 24.")
      .at_least(0);
  checkpoint
      .add(
          "async", &CheckpointSection::async, "",
          "true: the state is copied to host memory and written while training goes on, whose next "
          "update waits for the copy. auto: the same where that memory is there, else as false. "
          "false: training waits for all of it.")
      .one_of({"auto", "true", "false"});
  checkpoint
      .add("keep", &CheckpointSection::keep, "checkpoints", "Newest checkpoints to keep. 0: all.")
      .at_least(0);
  checkpoint
      .add("keep_every", &CheckpointSection::keep_every, "steps",
           "Checkpoints at multiples of this step are never deleted. 0: none.")
      .at_least(0);
  checkpoint.add("best", &CheckpointSection::best, "",
                 "Keep the checkpoint with the lowest validation loss too.");
  checkpoint
      .add("resume", &CheckpointSection::resume, "path",
           "auto: continue from the newest checkpoint of run.dir if there is one. none: start "
           "anew. Else the path of a checkpoint.")
      .checked("auto | none | PATH", [](const KeyValue& value) -> std::string {
        return std::get<std::string>(value).empty() ? "expected auto, none or a path" : "";
      });
  checkpoint
      .add("init_from", &CheckpointSection::init_from, "path",
           "A run that does not resume begins with parameters of this checkpoint, by name and "
           "equal shape. Empty: with random ones. Or an object of checkpoints by patterns of names "
           "of parameters, {\"encoder.*\": \"runs/asr\", \"lm.*\": \"runs/lm\"}: all that a "
           "pattern matches must be there, under the same name or without what the pattern has "
           "before its first wildcard.")
      .checked("PATH, or {PATTERN: PATH}", legal_start);
  checkpoint.add("init_take", &CheckpointSection::init_take, "patterns",
                 "With one init_from: names of the parameters to take, with * and ?. Empty: all.");
  checkpoint.add("init_skip", &CheckpointSection::init_skip, "patterns",
                 "With init_from: names of parameters to leave out.");
  checkpoint
      .add(
          "allow_changes", &CheckpointSection::allow_changes, "keys",
          "Keys of data, model or run.seed that may differ from those of the checkpoint that a run "
          "continues from, or true for all of them. Without it such a change is refused.")
      .or_word(CheckpointSection::kAllowAll)
      .checked("keys, or true", [](const KeyValue& value) -> std::string {
        for (const std::string& key : std::get<std::vector<std::string>>(value))
          if (key != CheckpointSection::kAllowAll && !is_key(key))
            return fmt::format("'{}' is not a key", key);
        return {};
      });

  auto log = table.section("log", &Deck::log);
  log.add("interval", &LogSection::interval, "steps",
          "Steps between log lines, beside the first, the last and those of evaluations. 0: only "
          "these.")
      .at_least(0);
  log.add("all_ranks", &LogSection::all_ranks, "",
          "Every rank writes to the terminal, not only rank 0.");
  log.add("verbose", &LogSection::verbose, "",
          "Print all of start.txt (every key, the module tree, the memory plan, the legend), not "
          "only one screen of it.");
  log.add("tensorboard", &LogSection::tensorboard, "",
          "The numbers of the log lines also as TensorBoard events, in tensorboard/ of run.dir.");
  add_fault_keys(table);
  table.top()
      .add("device", &Deck::device, "",
           "Where the work runs. auto: cuda where every rank has a GPU and train.precision is not "
           "fp64, else cpu.")
      .one_of({"auto", "cpu", "cuda"});
}

}  // namespace choir::deck
