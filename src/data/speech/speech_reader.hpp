#pragma once
// Reading of the audio of micro-batches, with checks and distribution to ranks that take the same
// samples; and validation sets of speech, cut into micro-batches that are read in the same manner.
#include <cstdint>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "src/data/speech/speech_dataset.hpp"
#include "src/data/text/mpi_group.hpp"

namespace choir {

/// Utterances found damaged while reading; the same on all ranks that read. Thread-safe.
class SpeechDamage {
 public:
  /// Returns true if the utterance was not in the set yet.
  bool add(std::int64_t utterance, const std::string& line);
  std::int64_t count() const;
  std::vector<std::string> take_lines();

 private:
  mutable std::mutex mutex_;
  std::set<std::int64_t> utterances_;
  std::vector<std::string> lines_;
};

/// The audio of a corpus in device memory, 16-bit samples in the order of its stream.
class ResidentAudio {
 public:
  static std::size_t bytes_of(const SpeechCorpus& corpus) {
    return static_cast<std::size_t>(corpus.audio().count()) * sizeof(std::uint16_t);
  }
  /// Collective over `comm`: every rank reads every utterance of the corpus and checks it. Damaged
  /// ones are refused, or reported and marked as config.on_bad says.
  ResidentAudio(Communicator& comm, const SpeechCorpus& corpus, const SpeechDataConfig& config,
                SpeechDamage& damage, Device& device);

  const std::byte* at(const SpeechItem& item) const { return at(corpus_.extent(item).first); }
  bool damaged(const SpeechItem& item) const { return damaged_.contains(corpus_.number(item)); }

 private:
  const std::byte* at(std::int64_t sample) const {
    return static_cast<const std::byte*>(memory_.data()) +
           static_cast<std::size_t>(sample) * sizeof(std::uint16_t);
  }

  const SpeechCorpus& corpus_;
  std::set<std::int64_t> damaged_;  // numbers of utterances
  Buffer memory_;
};

class SpeechRowReader {
 public:
  /// Collective over config.peers and, on the ranks that read, over `comm`. `shapes` bound the
  /// micro-batches to come. With `resident` audio, which must outlive this, nothing is read or
  /// sent.
  SpeechRowReader(Communicator& comm, const std::string& name, const SpeechCorpus& corpus,
                  const SpeechDataConfig& config, std::span<const SpeechShape> shapes,
                  SpeechDamage& damage, const ResidentAudio* resident = nullptr);
  /// Collective. Lays out and fills a batch of these rows; without rows it is an empty micro-batch.
  /// Throws on all ranks.
  void read(std::span<const SpeechRow> rows, SpeechBatchBuffer& to);
  void abandon();
  const TokenReader* reader() const { return reader_.get(); }

 private:
  void read_files(SpeechBatchBuffer& to);
  void unpack(const char* packed, SpeechBatchBuffer& to);
  void find_resident(SpeechBatchBuffer& to);
  void tell_damage(std::int64_t most);
  void broadcast(SpeechBatchBuffer& to);

  const SpeechCorpus& corpus_;
  OnBad on_bad_;
  double bad_cap_;
  SpeechDamage& damage_;
  const ResidentAudio* resident_;
  std::unique_ptr<Communicator> comm_, peers_;  // outlive their users below
  std::unique_ptr<MpiGroup> readers_, sharers_;
  std::unique_ptr<TokenReader> reader_;
  std::vector<TokenExtent> extents_;
  std::vector<std::int32_t> damaged_;  // flags of the rows of this micro-batch
  std::vector<SpeechItem> broken_;     // damaged utterances found by this rank
};

/// A validation set: its utterances in micro-batches.
class SpeechEvaluation {
 public:
  /// Collective. Throws as SpeechDataset::open.
  SpeechEvaluation(Communicator& comm, const SpeechDataConfig& config, const SpeechEvalSet& set,
                   int sample_rate, std::uint64_t tokenizer_hash);

  const std::string& name() const { return name_; }
  const std::vector<SpeechLeaf>& leaves() const { return leaves_; }
  const SpeechCorpus& corpus() const { return corpus_; }
  std::int64_t utterances() const { return std::ssize(rows_); }
  std::int64_t calls() const { return (std::ssize(shapes_) + ranks_ - 1) / ranks_; }
  /// The shape of every micro-batch.
  const std::vector<SpeechShape>& shapes() const { return shapes_; }
  std::size_t bytes() const;
  /// Collective.
  const SpeechBatch& batch(std::int64_t call);
  SpeechDamage& damage() { return damage_; }

 private:
  void choose(std::int64_t limit);
  void cut(const SpeechDataConfig& config, double batch_duration);

  std::string name_;
  int rank_, ranks_;
  std::vector<SpeechLeaf> leaves_;
  SpeechCorpus corpus_;
  std::vector<SpeechRow> rows_;
  std::vector<std::int64_t> begins_;
  std::vector<SpeechShape> shapes_;
  std::int64_t targets_ = 0;
  SpeechDamage damage_;
  std::unique_ptr<SpeechBatchBuffer> buffer_;
  std::unique_ptr<SpeechRowReader> reader_;
};

}  // namespace choir
