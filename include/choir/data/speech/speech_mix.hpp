#pragma once
// What speech a run is fed with: folders, groups of them that may be nested, weights, tags and
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
  std::int64_t limit = 0;          ///< of a folder: at most so many samples (texts: tokens); 0: all
  std::map<std::string, std::string> tags;  ///< those of a group hold for all in it
};

/// On each level either all entries have a weight or none has. With weights, an entry is drawn with
/// probability w_i^tau / sum_j w_j^tau, tau the temperature of the level (1: as given, 0: all
/// alike); the probability of a folder is the product over the levels. Entries without weights
/// stand for their number of utterances. Where a level and all below it have neither weights nor a
/// temperature other than 1, its folders are one pool with epochs of its own, in which every
/// utterance occurs once; else every folder is a pool.
struct SpeechMix {
  std::vector<SpeechInput> inputs;
  /// One for each level, outermost first; the last one holds for all deeper levels; none: 1.
  std::vector<double> temperature;

  /// Folders with equal standing.
  static SpeechMix of_folders(const std::vector<std::string>& folders);
  /// What data.input_cfg holds: a list as above, or {"inputs": LIST, "temperature": [OF EACH
  /// LEVEL]}. `temperature`: of a list; `source`: of the text, for messages. Throws DeckError.
  static SpeechMix of_text(const std::string& text, double temperature, const std::string& source);
  /// A list of {"folder": ..} or {"group": [..]}, each with "weight" and "tags" where wanted, or of
  /// names of folders; a folder also with "limit". NeMo's words are understood: "input_cfg" for a
  /// group, "type", and for a folder the names that its types have. Throws DeckError naming the key
  /// path, which begins with `path`.
  static SpeechMix of_json(const nlohmann::json& list, const std::vector<double>& temperature,
                           const std::string& path);
};

/// One folder of a mix, with its own tags and those of its groups (its own go first).
struct SpeechLeaf {
  std::string folder;
  std::map<std::string, std::string> tags;
  std::int64_t limit = 0;  ///< see SpeechInput
};

/// Folders that share epochs, and how often one of their utterances is drawn.
struct SpeechPool {
  std::vector<int> leaves;
  double probability = 1;
};

/// The folders, depth first. Throws DeckError: nothing in it, a weight for some of a level only, a
/// weight or temperature out of range.
std::vector<SpeechLeaf> leaves_of(const SpeechMix& mix);
/// `utterances`: of each leaf. Pools without utterances are left out.
std::vector<SpeechPool> pools_of(const SpeechMix& mix, std::span<const std::int64_t> utterances);

}  // namespace choir
