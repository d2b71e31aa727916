#pragma once
// One validation set of speech: its utterances in micro-batches, and reading them.
#include <memory>
#include <string>
#include <vector>

#include "choir/data/speech/speech_dataset.hpp"
#include "src/data/speech/speech_row_reader.hpp"

namespace choir {

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
  /// Of every micro-batch.
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
