#include "deck_tables.hpp"

namespace choir::deck {
namespace {

/// Returns "" for a legal value of checkpoint.init_from, otherwise a description of the fault.
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
           "Steps between checkpoints. 0: never, not even at the end. auto: the interval that "
           "minimises the time lost to saves and failures (Young and Daly), from the measured cost "
           "of a save.")
      .at_least(0)
      .or_word("auto", CheckpointSection::kAutoInterval);
  checkpoint
      .add("mtbf", &CheckpointSection::mtbf, "hours",
           "Mean time between failures of the whole job, for checkpoint.interval = auto and for "
           "advice. 0: 1000 hours divided by the number of nodes, at most 24.")
      .at_least(0);
  checkpoint
      .add("async", &CheckpointSection::async, "",
           "How checkpoints are written. true: the state is copied to host memory and written in "
           "the background; the next update waits for the copy. auto: true where enough host "
           "memory is free, else false. false: training waits until the checkpoint is written.")
      .one_of({"auto", "true", "false"});
  checkpoint
      .add("keep", &CheckpointSection::keep, "checkpoints", "Newest checkpoints to keep. 0: all.")
      .at_least(0);
  checkpoint
      .add("keep_every", &CheckpointSection::keep_every, "steps",
           "Never delete checkpoints at multiples of this number of steps. 0: none are kept for "
           "this reason.")
      .at_least(0);
  checkpoint.add("best", &CheckpointSection::best, "",
                 "Also keep the checkpoint with the lowest validation loss.");
  checkpoint
      .add("resume", &CheckpointSection::resume, "path",
           "Checkpoint to continue from. auto: the newest one in run.dir, if there is one. none: "
           "start from scratch. Otherwise the path of a checkpoint.")
      .checked("auto | none | PATH", [](const KeyValue& value) -> std::string {
        return std::get<std::string>(value).empty() ? "expected auto, none or a path" : "";
      });
  checkpoint
      .add("init_from", &CheckpointSection::init_from, "path",
           "Checkpoint whose parameters a new run starts from; they are matched by name and must "
           "have the same shape. Ignored when the run resumes. Empty: random initialisation. An "
           "object maps patterns of parameter names to checkpoints: {\"encoder.*\": \"runs/asr\", "
           "\"lm.*\": \"runs/lm\"}. Every parameter that matches a pattern must exist in its "
           "checkpoint, under the same name or without the part of the name before the first "
           "wildcard of the pattern.")
      .checked("PATH, or {PATTERN: PATH}", legal_start);
  checkpoint.add("init_take", &CheckpointSection::init_take, "patterns",
                 "Names of the parameters to take from a single checkpoint.init_from, with * and "
                 "?. Empty: all.");
  checkpoint.add("init_skip", &CheckpointSection::init_skip, "patterns",
                 "Names of parameters to leave out of checkpoint.init_from, with * and ?.");
  checkpoint
      .add("allow_changes", &CheckpointSection::allow_changes, "keys",
           "Keys of data, model or run.seed that may differ from the checkpoint that a run "
           "continues from, or true to allow all. Any other change of such a key is refused.")
      .or_word(CheckpointSection::kAllowAll)
      .checked("keys, or true", [](const KeyValue& value) -> std::string {
        for (const std::string& key : std::get<std::vector<std::string>>(value))
          if (key != CheckpointSection::kAllowAll && !is_key(key))
            return fmt::format("'{}' is not a key", key);
        return {};
      });

  auto log = table.section("log", &Deck::log);
  log.add("interval", &LogSection::interval, "steps",
          "Steps between log lines. The first and the last step and every evaluation are always "
          "logged. 0: only these.")
      .at_least(0);
  log.add("all_ranks", &LogSection::all_ranks, "",
          "Let every rank write to the terminal, not only rank 0.");
  log.add("verbose", &LogSection::verbose, "",
          "Print all of start.txt (every key, the module tree, the memory plan, the legend) "
          "instead of one screen of it.");
  log.add(
      "tensorboard", &LogSection::tensorboard, "",
      "Also write the numbers of the log lines as TensorBoard events, to tensorboard/ in run.dir.");
  add_fault_keys(table);
  table.top()
      .add("device", &Deck::device, "",
           "Device that the run uses. auto: cuda if every rank has a GPU and train.precision is "
           "not fp64, else cpu.")
      .one_of({"auto", "cpu", "cuda"});
}

}  // namespace choir::deck
