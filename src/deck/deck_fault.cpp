// The `fault` section: its keys, and what no single one of them can show.
#include <fmt/core.h>

#include <utility>

#include "choir/core/text.hpp"
#include "deck_tables.hpp"

namespace choir::deck {
namespace {

using Part = FaultSection;
using Keys = decltype(std::declval<Table>().section("", &Deck::fault));

void add_rank_keys(Keys& fault) {
  const auto pair = [&](const char* name, int Part::*rank, std::int64_t Part::*step,
                        const char* does, const char* when = "... at this step. -1: off.") {
    fault.add(fmt::format("{}_rank", name), rank, "rank", fmt::format("This rank {} ...", does))
        .at_least(-1);
    fault.add(fmt::format("{}_step", name), step, "step", when).at_least(-1);
  };
  pair("kill", &Part::kill_rank, &Part::kill_step, "gets SIGKILL");
  pair("hang", &Part::hang_rank, &Part::hang_step, "sleeps for ever");
  pair("pause", &Part::pause_rank, &Part::pause_step, "gets SIGSTOP");
  pair("throw", &Part::throw_rank, &Part::throw_step, "throws an error");
  pair("slow", &Part::slow_rank, &Part::slow_step, "sleeps for slow_ms, once a step",
       "... from this step on. -1: off.");
  fault.add("slow_ms", &Part::slow_ms, "milliseconds", "See slow_rank.").at_least(0);
  fault
      .add("phase", &Part::phase, "",
           "Where in the step those five happen. start: before it; evaluation, save: in those that "
           "follow it; else when the rank first enters that phase.")
      .one_of({"start", "data", "forward", "backward", "comm", "optimizer", "evaluation", "save"});
}

void add_number_keys(Keys& fault) {
  fault
      .add("nan_step", &Part::nan_step, "step",
           "The loss of this step is NaN, or with the two keys below: a gradient. -1: off.")
      .at_least(-1);
  fault
      .add("nan_rank", &Part::nan_rank, "rank",
           "At nan_step the NaN is in what this rank computed of the gradient of ... -1: off.")
      .at_least(-1);
  fault.add("nan_parameter", &Part::nan_parameter, "", "... this parameter.");
  fault.add("flip_rank", &Part::flip_rank, "rank", "A bit of a weight of this rank is inverted ...")
      .at_least(-1);
  fault.add("flip_step", &Part::flip_step, "step", "... after this step. -1: off.").at_least(-1);
  fault.add("flip_parameter", &Part::flip_parameter, "",
            "... of this parameter. Empty: the first.");
}

void add_file_keys(Keys& fault) {
  fault
      .add("write_fail_rank", &Part::write_fail_rank, "rank",
           "This rank cannot write its part of the save ...")
      .at_least(-1);
  const auto step = [&](const char* name, std::int64_t Part::*member, const char* about) {
    fault.add(name, member, "step", about).at_least(-1);
  };
  step("write_fail_step", &Part::write_fail_step, "... of this step. -1: off.");
  step("write_short_step", &Part::write_short_step,
       "The file system loses half of what the save of this step wrote. -1: off.");
  step("disk_full_step", &Part::disk_full_step, "The save of this step finds no space. -1: off.");
  step("truncate_save_step", &Part::truncate_save_step,
       "The checkpoint of this step loses half of its bytes after its commit. -1: off.");
  step("corrupt_save_step", &Part::corrupt_save_step,
       "A byte of the checkpoint of this step is inverted after its commit. -1: off.");
  fault
      .add("kill_in_save", &Part::kill_in_save, "",
           "SIGKILL not in a step but at this instant of a save, as named by the checkpoint "
           "writer: of every rank that gets "
           "there, or of kill_rank; in the first save, or in that of kill_step.")
      .one_of({"", "copy", "layout", "reserve", "write", "fsync", "written", "manifest", "rename",
               "replace", "latest", "prune"});
  fault.add("truncate_data", &Part::truncate_data, "path",
            "This file loses half of its bytes before data is opened; a copy stays beside it, as "
            "NAME.intact.");
  fault.add("corrupt_data", &Part::corrupt_data, "path", "The same, but a byte of it is inverted.");
  step("stop_step", &Part::stop_step, "A stop request arrives before this step. -1: off.");
}

}  // namespace

void add_fault_keys(Table& table) {
  auto fault = table.section("fault", &Deck::fault);
  fault.add("enable", &Part::enable, "",
            "The keys below make failures on purpose, for tests and drills: they are refused "
            "without this.");
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
    problems.push_back({keys, fmt::format("{}: failures are made on purpose only with "
                                          "fault.enable = true; set that, or remove the rest",
                                          join(keys, ", "))});
  }
  const auto pair = [&](const char* name, std::int64_t rank, std::int64_t step) {
    if ((rank < 0) == (step < 0)) return;
    const std::string key = fmt::format("fault.{}", name);
    problems.push_back(
        {{key + "_rank", key + "_step"}, fmt::format("{0}_rank and {0}_step go together", key)});
  };
  // Either alone goes with kill_in_save.
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
