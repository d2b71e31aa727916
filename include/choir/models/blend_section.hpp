#pragma once
// What the decks of all families say of where their samples come from. A family's section of data
// is derived from BlendSection, and its table takes these keys.
#include <string>

#include "choir/core/key_table.hpp"
#include "choir/data/speech/blend_source.hpp"

namespace choir {

struct BlendSection {
  std::string input_cfg;   ///< instead of data.train: JSON or the name of a file with it
  double temperature = 1;  ///< of its levels, where it has none of its own
  TextMap validation;      ///< beside data.val: named sets, see eval_set_of()
  std::string shard_seed;  ///< "": run.seed, an integer, or "randomized"
};

/// "" for what data.shard_seed and data.validation may be, else what they should be.
std::string wrong_shard_seed(const KeyValue& value);
std::string wrong_validation(const KeyValue& value);

/// `data`: the section of a table, bound to the BlendSection.
template <class Section>
void add_blend_keys(Section data) {
  data.add(
          "input_cfg", &BlendSection::input_cfg, "",
          "Instead of data.train: a JSON list of folders and groups with weights, tags and limits, "
          "[{\"folder\": \"data/a\", \"weight\": 2, \"limit\": 1000}, ...] (or {inputs: LIST, "
          "temperature: [OF EACH LEVEL]}), or the name of a JSON file with it. Without weights "
          "they count by their size; NeMo's names of keys are understood.")
      .when_resumed(OnResume::same_contents);
  data.add("temperature", &BlendSection::temperature, "",
           "Exponent of the weights of data.input_cfg. 1: as given, 0: all alike.")
      .at_least(0)
      .when_resumed(OnResume::same_contents);
  data.add("validation", &BlendSection::validation, "",
           "Validation sets with names beside data.val, each \"FOLDER[,FOLDER...] [limit=N]\"; "
           "speech and conversations with audio also [tag.NAME=VALUE], or a list as in "
           "data.input_cfg in place of the folders, with tags by which results are told apart; "
           "speech also [batch_duration=S] [min_duration=S] [max_duration=S].")
      .when_resumed(OnResume::same_contents)
      .checked("folders and options", wrong_validation);
  data.add("shard_seed", &BlendSection::shard_seed, "",
           "Seed of the order of the data. Empty: run.seed; randomized: another one at every "
           "start, so that a resumed run draws anew.")
      .checked("\"\", an integer or \"randomized\"", wrong_shard_seed);
}

/// What is wrong with these keys together. `train`: data.train.
std::vector<KeyProblem> check_blend(const BlendSection& blend,
                                    const std::vector<std::string>& train);

}  // namespace choir
