#pragma once
// A folder of packed dialogues: user/ and agent/, packed speech of both sides, recording for
// recording, and dialogues.json, which is written last. The labels in user/ are the agent's text
// channel, one token for every frame of 80 ms, and its manifest has the turns; agent/ also holds
// the codes of its audio.
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "src/data/dialogues/code_file.hpp"
#include "src/data/dialogues/dialogue_channels.hpp"

namespace choir {

/// The meaning of the tokens of a folder, from its dialogues.json.
struct DialogueForm {
  std::string units;             ///< NAME of user/labels.NAME.bin and user/tokenizer.NAME.json
  std::int64_t vocab_size = 0;   ///< includes the control tokens
  std::uint64_t vocab_hash = 0;  ///< of the units without control tokens
  DialogueControls controls;
  friend bool operator==(const DialogueForm&, const DialogueForm&) = default;

  /// Local. Throws DataError if the folder has no packed dialogues (naming `choir prepare
  /// dialogues`) or if they are damaged.
  static DialogueForm read(const std::string& folder);
  /// The JSON in dialogues.json and in checkpoints.
  nlohmann::ordered_json json() const;
  /// The hash of units and controls. Labels are marked with it, so that they are never taken for
  /// labels of speech.
  std::uint64_t hash() const;
  /// "dialogues.json", "user" and "agent" in a folder.
  static std::string path(const std::string& folder) { return folder + "/dialogues.json"; }
  static std::string user(const std::string& folder) { return folder + "/user"; }
  static std::string agent(const std::string& folder) { return folder + "/agent"; }
};

/// The description of a model's inputs and outputs in a checkpoint.
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
