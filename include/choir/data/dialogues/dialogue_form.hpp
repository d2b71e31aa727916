#pragma once
// A folder of packed dialogues: user/ and agent/, packed speech of both sides, recording for
// recording, and dialogues.json, written last. In user/ the labels are the agent's text channel, a
// token for every frame of 80 ms, and the manifest has the turns; beside agent/ lie its codes.
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "choir/data/codes/code_file.hpp"
#include "choir/data/dialogues/dialogue_channels.hpp"

namespace choir {

/// What the tokens of a folder mean, out of its dialogues.json.
struct DialogueForm {
  std::string units;             ///< NAME of user/labels.NAME.bin and user/tokenizer.NAME.json
  std::int64_t vocab_size = 0;   ///< with the controls
  std::uint64_t vocab_hash = 0;  ///< of the units alone
  DialogueControls controls;
  friend bool operator==(const DialogueForm&, const DialogueForm&) = default;

  /// Local. Throws DataError: no packed dialogues (names `choir prepare dialogues`), damaged.
  static DialogueForm read(const std::string& folder);
  /// As it stands in dialogues.json and in checkpoints.
  nlohmann::ordered_json json() const;
  /// The hash of units and controls, with which labels are marked so that they are never taken for
  /// labels of speech.
  std::uint64_t hash() const;
  /// "dialogues.json", "user" and "agent" in a folder.
  static std::string path(const std::string& folder) { return folder + "/dialogues.json"; }
  static std::string user(const std::string& folder) { return folder + "/user"; }
  static std::string agent(const std::string& folder) { return folder + "/agent"; }
};

/// All that a checkpoint keeps of what its model reads and says.
struct DialogueMeaning {
  DialogueForm form;
  std::string tokenizer;   ///< the units, Vocabulary::to_json()
  CodecDescription codec;  ///< of the codes
  /// {"dialogues": ..., "tokenizer": ...}, which Vocabulary::from_json() reads as the units.
  std::string to_json() const;
  /// Throws DataError that names `source`.
  static DialogueMeaning from_json(const std::string& json, const std::string& source);
};

}  // namespace choir
