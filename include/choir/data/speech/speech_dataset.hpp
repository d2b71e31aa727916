#pragma once
// The speech of a run, opened: training micro-batches read ahead, validation sets, shapes.
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "choir/data/speech/speech_batch.hpp"
#include "choir/data/speech/speech_blend.hpp"

namespace choir {

/// Validation data with a name and options of its own.
struct SpeechEvalSet {
  std::string name;
  std::vector<std::string> folders;
  SpeechFilter filter;        ///< none by default: all that was said is judged
  double batch_duration = 0;  ///< seconds; 0: that of training
  std::int64_t limit = 0;     ///< at most so many utterances, evenly spread; 0: all
  /// The tags of each folder, by which results are told apart; or empty: none has any.
  std::vector<std::map<std::string, std::string>> tags{};
};

/// Its folders, with the tags of each.
std::vector<SpeechLeaf> leaves_of(const SpeechEvalSet& set);

struct SpeechDataConfig {
  SpeechMix train;  ///< without inputs: only validation sets are opened
  std::vector<SpeechEvalSet> eval;
  std::string labels;                ///< NAME of labels.NAME.bin in every folder; "": none
  int sample_rate = 0;               ///< of the model; 0: that of the data
  std::uint64_t tokenizer_hash = 0;  ///< of the checkpoint; 0: any
  std::int64_t vocab_size = 0;       ///< of the model, without the blank; 0: that of the data
  SpeechFrames frames;
  SpeechFilter filter;  ///< of training
  OnBad on_bad = OnBad::stop;
  double bad_cap = 0.01;  ///< share of utterances that may be bad with skip
  std::int64_t verify_bytes = std::int64_t{1} << 30;  ///< see SpeechCorpusOptions
  SpeechBucketOptions batching;
  std::int64_t window = 4096;    ///< utterances that buckets are made of
  std::uint64_t order_seed = 0;  ///< speech_order_seed()
  ReaderOptions reader;
  /// Ranks that take the same samples, of which rank 0 reads and tells the others; nullptr: each
  /// reads. Must outlive the data set.
  Communicator* peers = nullptr;
  int slots = 2;  ///< batches held at a time; 1: read when asked for. See ReadAhead
};

/// Which micro-batches a rank asks for: `places` in every step, from number `first` on every
/// `stride`-th; those from `micro_batches` on are empty.
struct SpeechOrder {
  SpeechCursor from;
  std::int64_t micro_batches = 1;  ///< of a step, global
  std::int64_t first = 0;
  std::int64_t places = 1;
  std::int64_t stride = 1;

  /// Rank r of d owns ceil(micro_batches / d) places, contiguous.
  static SpeechOrder of_rank(SpeechCursor from, std::int64_t micro_batches, int rank, int ranks);
};

class SpeechDataset {
 public:
  /// Collective over `comm` (one rank for each part of the batch), which must outlive the data set,
  /// and over config.peers. One rank looks at the file system and tells the others. Throws on all
  /// ranks: DataError (files, rates, vocabularies, bad utterances), DeckError (settings).
  static std::unique_ptr<SpeechDataset> open(Communicator& comm, const SpeechDataConfig& config);
  /// Collective.
  ~SpeechDataset();
  SpeechDataset(const SpeechDataset&) = delete;
  SpeechDataset& operator=(const SpeechDataset&) = delete;

  std::int64_t vocab_size() const;  ///< without the blank
  std::uint64_t tokenizer_hash() const;
  int sample_rate() const;
  std::int64_t utterances() const;  ///< that training draws from
  double hours() const;             ///< of them
  const SpeechSift& sift() const;   ///< what training leaves out, and why
  const SpeechSampler& sampler() const;
  const SpeechPadding& padding() const;
  /// The folders of training; `leaf` of a row counts them.
  const std::vector<SpeechSource>& sources() const;
  /// No micro-batch of training, of validation, is larger than one of these in all three.
  const std::vector<SpeechShape>& shapes() const;
  const std::vector<SpeechShape>& eval_shapes() const;
  /// Lines: folders with their shares, what was left out, buckets, padding beside that of naive
  /// batching, validation sets, reader.
  std::string to_string() const;
  std::vector<std::pair<std::string, std::string>> hints() const;
  std::size_t bytes() const;  ///< of host memory held by this rank for batches and readers

  /// Collective. Begins reading ahead; called again (a new order) it starts anew. A step at the
  /// cursor of a SpeechBatch::after continues bit for bit.
  void start_training(const SpeechOrder& order);
  /// This rank's next training micro-batch; holds until slots - 1 further calls. All ranks must ask
  /// equally often. Throws on all ranks what failed on one.
  const SpeechBatch& next();
  /// Seconds spent in next() since the start: time that reading was not hidden.
  double wait_seconds() const;
  /// Lines about utterances found damaged since the last call, on ranks that read; each utterance
  /// once.
  std::vector<std::string> take_warnings();

  /// Evaluation. The micro-batches of a set hold each utterance once, longest first, whatever the
  /// number of ranks; in call c rank r gets micro-batch c * ranks + r, an empty one past the end.
  int eval_sets() const;
  const std::string& eval_name(int set) const;
  const SpeechSift& eval_sift(int set) const;
  std::int64_t eval_utterances(int set) const;
  std::int64_t eval_calls(int set) const;
  /// Collective; the batch holds until the next call. Its step_targets are those of the set.
  const SpeechBatch& eval_batch(int set, std::int64_t call);
  /// What was said in a row of an eval batch. Local.
  const std::string& eval_text(int set, const SpeechRow& row) const;
  /// The folders of a set; `leaf` of a row counts them.
  const std::vector<SpeechLeaf>& eval_leaves(int set) const;

 private:
  struct State;
  explicit SpeechDataset(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace choir
