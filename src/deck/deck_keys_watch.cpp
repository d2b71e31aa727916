#include "deck_tables.hpp"

namespace choir::deck {

void add_watch_keys(Table& table) {
  using Part = WatchSection;
  auto watch = table.section("watch", &Deck::watch);
  watch
      .add("start", &Part::start, "seconds",
           "How long a phase before the first step may go without progress. 0: parallel.timeout.")
      .in_seconds()
      .at_least(0);
  watch
      .add("first_step", &Part::first_step, "seconds",
           "The same for phases of the first step. 0: parallel.timeout.")
      .in_seconds()
      .at_least(0);
  watch
      .add("save", &Part::save, "seconds",
           "How long writing a checkpoint may take. 0: parallel.timeout.")
      .in_seconds()
      .at_least(0);
  watch
      .add("evaluation", &Part::evaluation, "seconds",
           "How long an evaluation, or a sample, may take. 0: parallel.timeout.")
      .in_seconds()
      .at_least(0);
  watch
      .add("still", &Part::still, "seconds",
           "A phase that takes longer is mentioned again and again after so long. 0: never.")
      .in_seconds()
      .at_least(0);
  watch
      .add("weights", &Part::weights, "steps",
           "Steps between comparisons of the bits of weights that several ranks hold; ranks that "
           "differ are named, and the run ends with exit code 4. 0: never.")
      .at_least(0);
  watch
      .add("ranks", &Part::ranks, "steps",
           "Steps between reports of how long ranks compute and which is the slowest, with the "
           "next line of the log. 0: never.")
      .at_least(0);
  watch.add("calls", &Part::calls, "",
            "For debugging: before each collective its ranks agree on what they are about to call, "
            "and the first that differs is named. Slow.");
}

}  // namespace choir::deck
