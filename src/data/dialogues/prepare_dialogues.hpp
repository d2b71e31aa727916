#pragma once
// Converts manifests of dialogues to folders that training reads
// (src/data/dialogues/dialogue_channels.hpp).
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "choir/comm/communicator.hpp"
#include "choir/core/log.hpp"
#include "src/data/dialogues/dialogue_manifest.hpp"

namespace choir {

struct PrepareDialoguesOptions {
  DialogueRoles roles;
  /// A tokenizer's file, or a vocabulary to train on the agent's texts: "char", "bpe_256",
  /// "unigram_128".
  std::string units = "char";
  /// Tokens of the units for padding, BOS and EOS; -1: new ones after the units.
  std::int32_t pad = -1, bos = -1, eos = -1;
  int sample_rate = 16000;
  double shard_minutes = 30;
  bool stop_on_bad = true;  ///< else up to bad_cap of the dialogues are excluded
  double bad_cap = 0.01;
};

struct PrepareDialoguesSummary {
  std::string folder, units;
  std::int64_t dialogues = 0, turns = 0;  ///< turns of the agent
  std::int64_t frames = 0;
  std::int64_t tokens = 0;                       ///< tokens of text, including those that were cut
  std::int64_t vocab_size = 0;                   ///< includes the control tokens
  std::int64_t cut = 0, cut_turns = 0;           ///< tokens that do not fit their turns
  std::string worst;                             ///< the turn that lost most tokens
  std::map<std::string, std::int64_t> left_out;  ///< dialogues by reason
  std::string example;                           ///< an excluded dialogue
  std::string to_string() const;
};

/// Collective over `world`: rank 0 reads manifests and texts, all ranks pack audio. Refuses a
/// folder that contains anything but an older result. Throws on all ranks: DataError (a bad
/// dialogue, for example sides whose lengths differ by more than two frames, unless bad ones are
/// excluded; more than bad_cap of them; a speaker without a role), DeckError, StorageError.
PrepareDialoguesSummary prepare_dialogues(Communicator& world, Logger& log,
                                          const std::vector<std::string>& manifests,
                                          const std::string& folder,
                                          const PrepareDialoguesOptions& options);

/// Local. The manifests of a folder that is a corpus (its dialogues/*.jsonl) by name, "train"
/// first; empty for any other folder.
std::vector<std::string> manifests_of_corpus(const std::string& folder);

}  // namespace choir
