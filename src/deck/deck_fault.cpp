// The `fault` section: its keys and the checks that concern several of them.
#include <fmt/core.h>

#include <utility>

#include "src/core/text.hpp"
#include "src/deck/deck_tables.hpp"

namespace choir::deck {
namespace {

using Part = FaultSection;
using Keys = decltype(std::declval<Table>().section("", &Deck::fault));

void add_rank_keys(Keys& fault) {
  const auto pair = [&](const char* name, int Part::*rank, std::int64_t Part::*step,
                        const char* does, const char* when = "Step of this fault. -1: off.") {
    fault.add(fmt::format("{}_rank", name), rank, "rank", fmt::format("Rank that {}.", does))
        .at_least(-1);
    fault.add(fmt::format("{}_step", name), step, "step", when).at_least(-1);
  };
  pair("kill", &Part::kill_rank, &Part::kill_step, "gets SIGKILL");
  pair("hang", &Part::hang_rank, &Part::hang_step, "sleeps for ever");
  pair("pause", &Part::pause_rank, &Part::pause_step, "gets SIGSTOP");
  pair("throw", &Part::throw_rank, &Part::throw_step, "throws an error");
  pair("slow", &Part::slow_rank, &Part::slow_step, "sleeps for slow_ms in every step",
       "First step of this fault. -1: off.");
  fault
      .add("slow_ms", &Part::slow_ms, "milliseconds",
           "Time that fault.slow_rank sleeps in every step.")
      .at_least(0);
  fault
      .add("phase", &Part::phase, "",
           "Phase of the step in which these five faults happen. start: before the step. "
           "evaluation, save: in the evaluation or save that follows the step. Otherwise: when the "
           "rank first enters this phase.")
      .one_of({"start", "data", "forward", "backward", "comm", "optimizer", "evaluation", "save"});
}

void add_number_keys(Keys& fault) {
  fault
      .add("nan_step", &Part::nan_step, "step",
           "Step whose loss is NaN; with the two keys below, a gradient instead of the loss. -1: "
           "off.")
      .at_least(-1);
  fault
      .add("nan_rank", &Part::nan_rank, "rank",
           "Rank whose gradient of fault.nan_parameter is NaN at fault.nan_step. -1: off.")
      .at_least(-1);
  fault.add("nan_parameter", &Part::nan_parameter, "", "Parameter whose gradient is NaN.");
  fault.add("flip_rank", &Part::flip_rank, "rank", "Rank on which a bit of a weight is inverted.")
      .at_least(-1);
  fault.add("flip_step", &Part::flip_step, "step", "Step after which the bit is inverted. -1: off.")
      .at_least(-1);
  fault.add("flip_parameter", &Part::flip_parameter, "",
            "Parameter of the inverted bit. Empty: the first.");
}

void add_file_keys(Keys& fault) {
  fault
      .add("write_fail_rank", &Part::write_fail_rank, "rank",
           "Rank that cannot write its part of a save.")
      .at_least(-1);
  const auto step = [&](const char* name, std::int64_t Part::*member, const char* about) {
    fault.add(name, member, "step", about).at_least(-1);
  };
  step("write_fail_step", &Part::write_fail_step,
       "Step of the save that fault.write_fail_rank cannot write. -1: off.");
  step("write_short_step", &Part::write_short_step,
       "Step whose save loses half of its bytes in the file system. -1: off.");
  step("disk_full_step", &Part::disk_full_step,
       "Step whose save finds no space on the disk. -1: off.");
  step("truncate_save_step", &Part::truncate_save_step,
       "Step whose checkpoint loses half of its bytes after its commit. -1: off.");
  step("corrupt_save_step", &Part::corrupt_save_step,
       "Step in whose checkpoint a byte is inverted after its commit. -1: off.");
  fault
      .add("kill_in_save", &Part::kill_in_save, "",
           "Instant of a save, as named by the checkpoint writer, at which SIGKILL is sent instead "
           "of in a step: to every rank that gets there or to kill_rank, in the first save or in "
           "that of kill_step.")
      .one_of({"", "copy", "layout", "reserve", "write", "fsync", "written", "manifest", "rename",
               "replace", "latest", "prune"});
  fault.add("truncate_data", &Part::truncate_data, "path",
            "File that loses half of its bytes before the data is opened; a copy remains beside it "
            "as NAME.intact.");
  fault.add("corrupt_data", &Part::corrupt_data, "path",
            "File in which a byte is inverted before the data is opened; a copy remains beside it "
            "as NAME.intact.");
  step("stop_step", &Part::stop_step, "Step before which a stop request arrives. -1: off.");
}

}  // namespace

void add_fault_keys(Table& table) {
  auto fault = table.section("fault", &Deck::fault);
  fault.add("enable", &Part::enable, "",
            "Enable the keys below, which cause failures on purpose for tests and drills. Without "
            "it they are refused.");
  add_rank_keys(fault);
  add_number_keys(fault);
  add_file_keys(fault);
}

std::vector<KeyProblem> check_faults(const Deck& deck) {
  const FaultSection& f = deck.fault;
  std::vector<KeyProblem> problems;
  FaultSection off;
  off.enable = f.enable;
  if (!f.enable && !(f == off)) {
    std::vector<std::string> keys;
    for (const auto& [key, origin] : deck.origins)
      if (key.starts_with("fault.") && key != "fault.enable") keys.push_back(key);
    problems.push_back(
        {keys, fmt::format("{}: faults need fault.enable = true; set it, or remove these keys",
                           join(keys, ", "))});
  }
  const auto pair = [&](const char* name, std::int64_t rank, std::int64_t step) {
    if ((rank < 0) == (step < 0)) return;
    const std::string key = fmt::format("fault.{}", name);
    problems.push_back({{key + "_rank", key + "_step"},
                        fmt::format("{0}_rank and {0}_step must be given together", key)});
  };
  // With kill_in_save, either alone is allowed.
  if (f.kill_in_save.empty()) pair("kill", f.kill_rank, f.kill_step);
  pair("hang", f.hang_rank, f.hang_step);
  pair("pause", f.pause_rank, f.pause_step);
  pair("throw", f.throw_rank, f.throw_step);
  pair("slow", f.slow_rank, f.slow_step);
  pair("flip", f.flip_rank, f.flip_step);
  pair("write_fail", f.write_fail_rank, f.write_fail_step);
  const auto needs = [&](bool given, const char* key, bool there, const char* what) {
    if (given && !there)
      problems.push_back({{key}, fmt::format("{} does nothing without {}", key, what)});
  };
  needs(f.nan_rank >= 0, "fault.nan_rank", f.nan_step >= 0 && !f.nan_parameter.empty(),
        "fault.nan_step and fault.nan_parameter");
  needs(!f.nan_parameter.empty(), "fault.nan_parameter", f.nan_rank >= 0, "fault.nan_rank");
  needs(!f.flip_parameter.empty(), "fault.flip_parameter", f.flip_rank >= 0, "fault.flip_rank");
  needs(f.slow_ms != off.slow_ms, "fault.slow_ms", f.slow_rank >= 0, "fault.slow_rank");
  needs(f.phase != off.phase, "fault.phase",
        f.kill_step >= 0 || f.hang_step >= 0 || f.pause_step >= 0 || f.throw_step >= 0 ||
            f.slow_step >= 0,
        "a rank to be killed, hung, paused, slowed, or to throw");
  return problems;
}

}  // namespace choir::deck
