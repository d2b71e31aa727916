#pragma once
// Keys of the sources of training and validation samples, which the decks of all families share. A
// family's data section derives from BlendSection, and its key table includes these keys.
#include <string>

#include "choir/core/key_table.hpp"
#include "src/data/speech/data_sources.hpp"

namespace choir {

struct BlendSection {
  std::string input_cfg;   ///< used instead of data.train: JSON or the name of a JSON file
  double temperature = 1;  ///< of the levels of input_cfg that have none of their own
  TextMap validation;      ///< named sets besides data.val, see eval_set_of()
  std::string shard_seed;  ///< "": run.seed, an integer, or "randomized"
};

/// Return "" for a legal value of data.shard_seed and data.validation, else what is expected.
std::string wrong_shard_seed(const KeyValue& value);
std::string wrong_validation(const KeyValue& value);

/// Adds the keys to `data`, the section of a table that is bound to the BlendSection.
template <class Section>
void add_blend_keys(Section data) {
  data.add(
          "input_cfg", &BlendSection::input_cfg, "",
          "Instead of data.train: a JSON list of folders and groups with weights, tags and limits, "
          "[{\"folder\": \"data/a\", \"weight\": 2, \"limit\": 1000}, ...] (or {inputs: LIST, "
          "temperature: [OF EACH LEVEL]}), or the name of a JSON file with it. Without weights "
          "they count by their size; NeMo's names of keys are understood.")
      .or_json()
      .when_resumed(OnResume::same_contents);
  data.add("temperature", &BlendSection::temperature, "",
           "Exponent of the weights of data.input_cfg. 1: as given, 0: equal weights.")
      .at_least(0)
      .when_resumed(OnResume::same_contents);
  data.add("validation", &BlendSection::validation, "",
           "Named validation sets besides data.val, each \"FOLDER[,FOLDER...] [OPTION=VALUE ...]\" "
           "or an object with the same options, {\"folder\": \"data/a\", \"limit\": 100}. "
           "limit=N: at most N samples (of texts: tokens). Texts and conversations: batches=N "
           "instead of eval.batches. Where samples have audio, min_duration=S and "
           "max_duration=S leave out others. Where outputs are compared with references, "
           "tag.NAME=VALUE, or a list as in data.input_cfg instead of the folders, gives tags by "
           "which results are reported separately. Speech: batch_duration=S. Conversations with "
           "audio: answers=N and answer_tokens=N instead of the keys of eval, temperature=X "
           "(default 0: greedy), top_k=N, top_p=X. Dialogues: dialogues=N.")
      .or_json()
      .when_resumed(OnResume::same_contents)
      .checked("folders and options", wrong_validation);
  data.add("shard_seed", &BlendSection::shard_seed, "",
           "Seed of the order of the data. Empty: run.seed. randomized: a new seed at every start, "
           "so that a resumed run draws its samples anew.")
      .checked("\"\", an integer or \"randomized\"", wrong_shard_seed);
}

/// Returns the problems of these keys with each other. `train`: data.train.
std::vector<KeyProblem> check_blend(const BlendSection& blend,
                                    const std::vector<std::string>& train);

}  // namespace choir
