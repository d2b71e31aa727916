#pragma once
// Folders of packed speech, opened: where every utterance lies, its labels, and which are used.
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "choir/comm/communicator.hpp"
#include "choir/data/audio/audio_catalog.hpp"
#include "choir/data/speech/label_file.hpp"
#include "choir/data/speech/speech_filter.hpp"
#include "choir/data/speech/speech_mix.hpp"
#include "choir/data/tokens/token_reader.hpp"
#include "choir/data/tokens/token_stream.hpp"

namespace choir {

struct SpeechCorpusOptions {
  std::string labels;                ///< NAME of labels.NAME.bin; "": none are wanted
  int sample_rate = 0;               ///< of the model; 0: any, the same in all folders
  std::uint64_t tokenizer_hash = 0;  ///< of the model; 0: any, the same in all folders
  SpeechFrames frames;
  SpeechFilter filter;
  bool validation = false;  ///< see SpeechSift; texts are kept
  OnBad on_bad = OnBad::stop;
  double bad_cap = 0.01;  ///< share of utterances
  /// Folders with up to so many bytes of audio have the checksum of every utterance compared when
  /// opened, by all ranks together; in larger ones damage is found when it is read.
  std::int64_t verify_bytes = std::int64_t{1} << 30;
  std::string what = "the training data";
};

class SpeechCorpus {
 public:
  /// Collective over `comm`, and over `peers` where given, whose rank 0 reads for the others; one
  /// rank of all looks at the file system. The same on all ranks. Throws on all of them: DataError
  /// (files, rates, vocabularies, bad utterances, nothing left).
  static SpeechCorpus load(Communicator& comm, Communicator* peers,
                           const std::vector<SpeechLeaf>& leaves,
                           const SpeechCorpusOptions& options);

  int folders() const { return static_cast<int>(folders_.size()); }
  const AudioCatalog& catalog(int leaf) const { return at(leaf).catalog; }
  const std::vector<SpeechItem>& items(int leaf) const { return at(leaf).items; }
  const SpeechSift& sift() const { return sift_; }
  int sample_rate() const { return folders_.front().catalog.sample_rate(); }
  std::int64_t vocab_size() const { return folders_.front().labels.vocab_size(); }
  std::uint64_t tokenizer_hash() const { return folders_.front().labels.tokenizer_hash(); }
  std::int64_t utterances() const { return utterances_; }  ///< of all folders, used or not

  /// All shards, as items of 16 bits.
  const TokenStream& audio() const { return audio_; }
  TokenExtent extent(const SpeechItem& item) const;
  std::uint32_t crc(const SpeechItem& item) const;
  std::span<const std::int32_t> labels(const SpeechItem& item) const;
  /// Number of an utterance among those of all folders.
  std::int64_t number(const SpeechItem& item) const { return at(item.leaf).first + item.utterance; }
  /// "utterance 7 of 'data/a' (data/a/audio_00000.pcm, samples 64 to 16064)"
  std::string place_of(const SpeechItem& item) const;
  /// What was said; validation only.
  const std::string& text(const SpeechItem& item) const;

 private:
  struct Folder {
    AudioCatalog catalog;
    LabelFile labels;
    std::vector<std::string> texts;
    std::vector<SpeechItem> items;
    std::int64_t first = 0;      // number of its first utterance
    std::size_t first_file = 0;  // of its shards in the stream
  };
  SpeechCorpus() : sift_({}, {}, false) {}
  const Folder& at(int leaf) const { return folders_[static_cast<std::size_t>(leaf)]; }
  void rebuild(const std::string& image);
  std::vector<std::int32_t> find_damage(Communicator& comm, std::int64_t verify_bytes) const;
  void check(const SpeechCorpusOptions& options) const;

  std::vector<Folder> folders_;
  TokenStream audio_;
  SpeechSift sift_;
  std::int64_t utterances_ = 0;
};

}  // namespace choir
