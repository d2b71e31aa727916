#pragma once
// Folders of prepared conversations, opened on all ranks: the conversations that can be drawn, and
// their audio.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "choir/comm/communicator.hpp"
#include "src/data/audio/packed_audio.hpp"
#include "src/data/chat/chat_template.hpp"
#include "src/data/chat/conversation_file.hpp"
#include "src/data/sampling/blend.hpp"
#include "src/data/sampling/buckets.hpp"
#include "src/data/sampling/mix.hpp"

namespace choir {

struct ConversationCorpusOptions {
  SpeechFrames frames;           ///< of the encoder of the clips
  bool audio = true;             ///< clips are allowed
  int sample_rate = 0;           ///< of the model; 0: any, but equal in all folders
  std::int64_t max_rows = 0;     ///< longer conversations are excluded; 0: none
  std::int64_t vocab_size = 0;   ///< of the model; 0: any
  std::uint64_t vocab_hash = 0;  ///< of the checkpoint; 0: any, but equal in all folders
  std::string what = "the training data";
};

class ConversationCorpus {
 public:
  /// Collective over `world`: rank 0 reads and broadcasts to the others; the result is the same on
  /// all ranks. Throws DataError on all of them (files, vocabularies, rates, clips for a model
  /// without audio, nothing left).
  static ConversationCorpus load(Communicator& world, const std::vector<SpeechLeaf>& leaves,
                                 const ConversationCorpusOptions& options);

  int folders() const { return static_cast<int>(folders_.size()); }
  const SpeechLeaf& leaf(int i) const { return at(i).leaf; }
  const ConversationSet& set(int i) const { return at(i).set; }
  /// nullptr for a folder without clips.
  const AudioCatalog* catalog(int i) const { return at(i).catalog ? &*at(i).catalog : nullptr; }
  /// The conversations of a folder that can be drawn: `utterance` is the conversation, `samples`
  /// its rows (tokens and frames that are inputs), `labels` its targets.
  const std::vector<SpeechItem>& items(int i) const { return at(i).items; }
  /// Keeps at most this many conversations, evenly spread; 0: all.
  void limit(std::int64_t conversations);
  /// Leaves out conversations whose clips have less than `least` or more than `most` (0: any)
  /// seconds in total. Those without audio have 0 seconds.
  void keep_durations(double least, double most);
  std::int64_t conversations() const;  ///< number that can be drawn
  std::int64_t clips() const;
  int sample_rate() const { return sample_rate_; }  ///< 0: no audio
  std::int64_t vocab_size() const { return folders_.front().set.vocab_size(); }
  std::uint64_t vocab_hash() const { return folders_.front().set.vocab_hash(); }
  std::int32_t end_of_turn() const { return folders_.front().set.end_of_turn(); }
  /// How conversations.chat of the first folder was rendered, as far as the files beside it record
  /// this.
  const ChatForm& form() const { return form_; }
  const std::string& tokenizer() const { return form_.tokenizer; }
  std::uint64_t hash() const;
  /// "3 of 120 conversations left out: longer than 128 tokens 3"; "" for none.
  const std::string& left_out() const { return left_out_; }
  /// The pools of a mix over these folders.
  std::vector<SpeechPoolItems> pools(const SpeechMix& mix) const;

 private:
  struct Folder {
    SpeechLeaf leaf;
    ConversationSet set;
    std::optional<AudioCatalog> catalog;
    std::vector<SpeechItem> items;
  };
  const Folder& at(int i) const { return folders_[static_cast<std::size_t>(i)]; }
  void choose(const ConversationCorpusOptions& options);

  std::vector<Folder> folders_;
  int sample_rate_ = 0;
  ChatForm form_;
  std::string left_out_;
};

}  // namespace choir
