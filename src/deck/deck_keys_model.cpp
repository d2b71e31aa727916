#include "deck_tables.hpp"

namespace choir::deck {
void add_run_keys(Table& table) {
  auto run = table.section("run", &Deck::run);
  run.add("dir", &RunSection::dir, "path", "Directory of the run. Empty: runs/<run.name>.");
  run.add("name", &RunSection::name, "", "Name of the run. Empty: the name of the deck file.")
      .checked("no '/', not \".\" or \"..\"", [](const KeyValue& value) -> std::string {
        const auto& name = std::get<std::string>(value);
        if (name == "." || name == "..") return "would lead out of runs/";
        return name.find('/') == name.npos ? "" : "a name holds no '/'; set run.dir for a path";
      });
  run.add("seed", &RunSection::seed, "",
          "Seed of every random number: initialisation, dropout, data order, samples.")
      .at_least(0)
      .when_resumed(OnResume::fixed);
  run.add("walltime", &RunSection::walltime, "seconds",
          "Time the job has; shortly before its end the run saves and stops with exit code 75. 0: "
          "no limit.")
      .in_seconds()
      .at_least(0);
  run.add("walltime_margin", &RunSection::walltime_margin, "seconds",
          "How long before the end of run.walltime the last save begins.")
      .in_seconds()
      .at_least(0);
}

void add_model_keys(Table& table) {
  auto model = table.section("model", &Deck::model);
  std::vector<std::string> names;
  for (const ModelFamily* family : model_families()) names.emplace_back(family->name());
  model.add("type", &ModelSection::type, "", "Family of the model.").one_of(std::move(names));
}

void add_data_keys(Table& table) {
  auto data = table.section("data", &Deck::data);
  data.add(
          "train", &DataSection::train, "paths",
          "Files or folders of training data; on first use a text file is tokenised, a manifest of "
          "speech packed.")
      .when_resumed(OnResume::same_contents);
  data.add("val", &DataSection::val, "paths",
           "The same for validation. Empty: the validation part made when a text is prepared.")
      .when_resumed(OnResume::same_contents);
  data.add("format", &DataSection::format, "",
           "auto looks at the first file; synthetic draws random tokens and reads nothing.")
      .one_of({"auto", "text", "native", "nanogpt", "megatron", "synthetic"})
      .when_resumed(OnResume::same_contents);
  data.add("reader", &DataSection::reader, "",
           "own: each rank reads its slice. collective: MPI_File_read_at_all. scatter: a few ranks "
           "read large blocks and scatter them. node: one rank a node fills shared memory.")
      .one_of({"own", "collective", "scatter", "node"})
      .when_resumed(OnResume::free);
  data.add(
          "hints", &DataSection::hints, "",
          "MPI-IO hints, as striping_factor or cb_nodes; echoed with what the system made of them.")
      .when_resumed(OnResume::free);
  data.add("preload", &DataSection::preload, "", "Keep the whole data set in memory.")
      .one_of({"none", "host"}, {"device"})
      .when_resumed(OnResume::free);
  data.add("readers_every", &DataSection::readers_every, "ranks",
           "For scatter: one reader per N ranks. 0: one a node.")
      .at_least(0)
      .when_resumed(OnResume::free);
  data.add("prefetch", &DataSection::prefetch, "micro-batches",
           "Batches read ahead by a background thread. 0: read when needed.")
      .at_least(0)
      .at_most(64)
      .when_resumed(OnResume::free);
}

}  // namespace choir::deck
