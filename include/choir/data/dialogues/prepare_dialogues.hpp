#pragma once
// Manifests of dialogues to folders that training reads (choir/data/dialogues/dialogue_form.hpp).
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "choir/comm/communicator.hpp"
#include "choir/core/log.hpp"
#include "choir/data/dialogues/dialogue_manifest.hpp"

namespace choir {

struct PrepareDialoguesOptions {
  DialogueRoles roles;
  /// A tokenizer's file, or what is to be made of what the agent says: "char", "bpe_256",
  /// "unigram_128".
  std::string units = "char";
  /// Tokens of the units for padding, BOS and EOS; -1: new ones behind the units.
  std::int32_t pad = -1, bos = -1, eos = -1;
  int sample_rate = 16000;
  double shard_minutes = 30;
  bool stop_on_bad = true;  ///< else bad dialogues are left out, up to bad_cap of all
  double bad_cap = 0.01;
};

struct PrepareDialoguesSummary {
  std::string folder, units;
  std::int64_t dialogues = 0, turns = 0;  ///< turns of the agent
  std::int64_t frames = 0;
  std::int64_t tokens = 0;                       ///< of text, those that were cut included
  std::int64_t vocab_size = 0;                   ///< with the controls
  std::int64_t cut = 0, cut_turns = 0;           ///< tokens that do not fit their turns
  std::string worst;                             ///< the turn that lost most
  std::map<std::string, std::int64_t> left_out;  ///< dialogues by reason
  std::string example;                           ///< of them
  std::string to_string() const;
};

/// Collective over `world`: rank 0 reads manifests and texts, all share the work of packing audio.
/// A folder that holds anything but an older result is refused. Throws on all ranks: DataError (a
/// bad dialogue unless they are left out, such as sides of which one is more than two frames longer
/// than the other; more than bad_cap of them; a speaker without a role), DeckError, StorageError.
PrepareDialoguesSummary prepare_dialogues(Communicator& world, Logger& log,
                                          const std::vector<std::string>& manifests,
                                          const std::string& folder,
                                          const PrepareDialoguesOptions& options);

/// Local. Where a folder is a corpus (its dialogues/*.jsonl), its manifests by name, "train" first;
/// none for anything else.
std::vector<std::string> manifests_of_corpus(const std::string& folder);

}  // namespace choir
