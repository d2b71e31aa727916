#pragma once
// Opened folders of packed speech: the location of every utterance, its labels, and the utterances
// in use.
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
  std::string labels;   ///< NAME of labels.NAME.bin; "": no labels are read
  int sample_rate = 0;  ///< sample rate of the model; 0: any rate that all folders share
  std::uint64_t tokenizer_hash = 0;  ///< tokenizer of the model; 0: any that all folders share
  SpeechFrames frames;
  SpeechFilter filter;
  bool validation = false;  ///< see SpeechSift; the corpus keeps the texts
  OnBad on_bad = OnBad::stop;
  double bad_cap = 0.01;  ///< largest share of bad utterances
  /// Folders with up to this many bytes of audio have the checksums of all utterances verified when
  /// they are opened, by all ranks together. In larger folders damage is detected when it is read.
  std::int64_t verify_bytes = std::int64_t{1} << 30;
  std::string what = "the training data";
};

class SpeechCorpus {
 public:
  /// Collective over `comm`, and over `peers` if given, whose rank 0 reads for the others. A single
  /// rank accesses the file system. All ranks get the same corpus. Throws DataError on all ranks
  /// (files, rates, vocabularies, bad utterances, no utterance left).
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
  std::int64_t utterances() const {
    return utterances_;
  }  ///< utterances of all folders, used or not

  /// All shards as a stream of 16-bit items.
  const TokenStream& audio() const { return audio_; }
  TokenExtent extent(const SpeechItem& item) const;
  std::uint32_t crc(const SpeechItem& item) const;
  std::span<const std::int32_t> labels(const SpeechItem& item) const;
  /// Index of an utterance among the utterances of all folders.
  std::int64_t number(const SpeechItem& item) const { return at(item.leaf).first + item.utterance; }
  /// "utterance 7 of 'data/a' (data/a/audio_00000.pcm, samples 64 to 16064)"
  std::string place_of(const SpeechItem& item) const;
  /// The reference text; validation only.
  const std::string& text(const SpeechItem& item) const;

 private:
  struct Folder {
    AudioCatalog catalog;
    LabelFile labels;
    std::vector<std::string> texts;
    std::vector<SpeechItem> items;
    std::int64_t first = 0;      // index of its first utterance among all folders
    std::size_t first_file = 0;  // index of its first shard in the stream
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
