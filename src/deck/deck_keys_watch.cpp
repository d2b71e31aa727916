#include "deck_tables.hpp"

namespace choir::deck {

void add_watch_keys(Table& table) {
  using Part = WatchSection;
  auto watch = table.section("watch", &Deck::watch);
  watch
      .add(
          "start", &Part::start, "seconds",
          "Time that a phase before the first step may take without progress. 0: parallel.timeout.")
      .in_seconds()
      .at_least(0);
  watch
      .add("first_step", &Part::first_step, "seconds",
           "Time that a phase of the first step may take without progress. 0: parallel.timeout.")
      .in_seconds()
      .at_least(0);
  watch
      .add("save", &Part::save, "seconds",
           "Time that writing a checkpoint may take. 0: parallel.timeout.")
      .in_seconds()
      .at_least(0);
  watch
      .add("evaluation", &Part::evaluation, "seconds",
           "Time that an evaluation or a sample may take. 0: parallel.timeout.")
      .in_seconds()
      .at_least(0);
  watch
      .add("still", &Part::still, "seconds",
           "Interval at which a phase that takes longer than this is reported. 0: never.")
      .in_seconds()
      .at_least(0);
  watch
      .add("weights", &Part::weights, "steps",
           "Steps between bitwise comparisons of weights that several ranks hold. If they differ, "
           "the ranks are named and the run exits with code 4. 0: never.")
      .at_least(0);
  watch
      .add("ranks", &Part::ranks, "steps",
           "Steps between reports of the compute time of the ranks and of the slowest rank; they "
           "appear with the next log line. 0: never.")
      .at_least(0);
  watch.add("calls", &Part::calls, "",
            "For debugging: before each collective its ranks compare the calls that they are about "
            "to make, and the first that differs is named. Slow.");
}

}  // namespace choir::deck
