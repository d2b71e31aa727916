#pragma once
// The mix of data sources of a run: folders, groups of them that may be nested, weights, tags and
// temperatures. Pure values.

#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace choir {

/// A folder of packed speech, or a group of inputs.
struct SpeechInput {
  std::string folder;              ///< empty: a group
  std::vector<SpeechInput> group;  ///< empty: a folder
  std::optional<double> weight;    ///< above 0
  std::int64_t limit = 0;          ///< maximum samples of a folder (of a text: tokens); 0: all
  std::map<std::string, std::string> tags;  ///< tags of a group apply to everything in it
};

/// On each level either all entries have a weight or none has. With weights, an entry is drawn with
/// probability w_i^tau / sum_j w_j^tau, where tau is the temperature of the level (1: the weights
/// as given, 0: all equal); the probability of a folder is the product over the levels. Without
/// weights the weight of an entry is its number of utterances. If a level and all levels below it
/// have neither weights nor a temperature other than 1, its folders form one pool with epochs of
/// its own, in which every utterance occurs once; otherwise every folder is a pool.
struct SpeechMix {
  std::vector<SpeechInput> inputs;
  /// One temperature per level, outermost first. The last one applies to all deeper levels; without
  /// any it is 1.
  std::vector<double> temperature;

  /// A mix of folders without weights.
  static SpeechMix of_folders(const std::vector<std::string>& folders);
  /// Parses the contents of data.input_cfg: a list as above, or {"inputs": LIST, "temperature":
  /// [ONE PER LEVEL]}. `temperature` is used for a list; `source` names the text in messages.
  /// Throws DeckError.
  static SpeechMix of_text(const std::string& text, double temperature, const std::string& source);
  /// Parses a list of {"folder": ..} or {"group": [..]}, each with optional "weight" and "tags", or
  /// of names of folders; a folder may have a "limit". NeMo's keys are accepted: "input_cfg" for a
  /// group, "type", and the folder keys of its types. Throws DeckError with the key path, which
  /// begins with `path`.
  static SpeechMix of_json(const nlohmann::json& list, const std::vector<double>& temperature,
                           const std::string& path);
};

/// A folder of a mix with its own tags and those of its groups; its own take precedence.
struct SpeechLeaf {
  std::string folder;
  std::map<std::string, std::string> tags;
  std::int64_t limit = 0;  ///< see SpeechInput
};

/// Folders that share epochs, and the probability that one of their utterances is drawn.
struct SpeechPool {
  std::vector<int> leaves;
  double probability = 1;
};

/// The folders, depth first. Throws DeckError for an empty mix, a level with weights on only some
/// entries, and a weight or temperature out of range.
std::vector<SpeechLeaf> leaves_of(const SpeechMix& mix);
/// Returns the pools of a mix; `utterances` counts those of each leaf. Pools without utterances are
/// omitted.
std::vector<SpeechPool> pools_of(const SpeechMix& mix, std::span<const std::int64_t> utterances);

}  // namespace choir
