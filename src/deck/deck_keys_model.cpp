#include "deck_tables.hpp"

namespace choir::deck {
void add_run_keys(Table& table) {
  auto run = table.section("run", &Deck::run);
  run.add("dir", &RunSection::dir, "path",
          "Directory to which the run writes. Empty: runs/<run.name>.");
  run.add("name", &RunSection::name, "", "Name of the run. Empty: the name of the deck file.")
      .checked("no '/', not \".\" or \"..\"", [](const KeyValue& value) -> std::string {
        const auto& name = std::get<std::string>(value);
        if (name == "." || name == "..") return "would lead out of runs/";
        return name.find('/') == name.npos ? "" : "a name holds no '/'; set run.dir for a path";
      });
  run.add("seed", &RunSection::seed, "",
          "Seed of all random numbers: initialisation, dropout, data order and samples.")
      .at_least(0)
      .when_resumed(OnResume::fixed);
  run.add("walltime", &RunSection::walltime, "seconds",
          "Time limit of the job. Shortly before it expires the run saves a checkpoint and exits "
          "with code 75. 0: no limit.")
      .in_seconds()
      .at_least(0);
  run.add("walltime_margin", &RunSection::walltime_margin, "seconds",
          "Time before the end of run.walltime at which the last save begins.")
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
  data.add("train", &DataSection::train, "paths",
           "Files or folders of training data. On first use, text files are tokenised and speech "
           "manifests are packed.")
      .when_resumed(OnResume::same_contents);
  data.add("val", &DataSection::val, "paths",
           "Files or folders of validation data. Empty: the validation part that was set aside "
           "when the text was prepared.")
      .when_resumed(OnResume::same_contents);
  data.add("format", &DataSection::format, "",
           "Format of the data. auto: detected from the first file. synthetic: random tokens, no "
           "file is read.")
      .one_of({"auto", "text", "native", "nanogpt", "megatron", "synthetic"})
      .when_resumed(OnResume::same_contents);
  data.add("reader", &DataSection::reader, "",
           "How ranks read data. own: each rank reads its own slice. collective: "
           "MPI_File_read_at_all. scatter: a few ranks read large blocks and scatter them. node: "
           "one rank per node fills shared memory.")
      .one_of({"own", "collective", "scatter", "node"})
      .when_resumed(OnResume::free);
  data.add("hints", &DataSection::hints, "",
           "MPI-IO hints such as striping_factor or cb_nodes. The log shows the values that the "
           "MPI library adopted.")
      .when_resumed(OnResume::free);
  data.add("preload", &DataSection::preload, "",
           "Where to keep the whole data set during the run. host: in host memory.")
      .one_of({"none", "host"}, {"device"})
      .when_resumed(OnResume::free);
  data.add("readers_every", &DataSection::readers_every, "ranks",
           "One reader per N ranks, for data.reader = scatter. 0: one per node.")
      .at_least(0)
      .when_resumed(OnResume::free);
  data.add("prefetch", &DataSection::prefetch, "micro-batches",
           "Micro-batches that a background thread reads ahead. 0: read when needed.")
      .at_least(0)
      .at_most(64)
      .when_resumed(OnResume::free);
}

}  // namespace choir::deck
