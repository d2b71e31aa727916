#pragma once
// The opened speech data of a run: micro-batches (views of memory) and the buffer that owns such
// memory, training micro-batches that are read ahead, validation sets, and their shapes.

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "choir/core/tensor.hpp"
#include "choir/device/device.hpp"
#include "src/data/audio/transcript_form.hpp"
#include "src/data/sampling/blend.hpp"
#include "src/data/sampling/sampler.hpp"
#include "src/data/speech/speech_corpus.hpp"

namespace choir {

struct SpeechBatch {
  TensorView audio;          ///< [B, S] i16 PCM (stored as u16), zero beyond the length of a row
  TensorView audio_lengths;  ///< [B] i32, samples; 0 in a row of padding
  TensorView frame_lengths;  ///< [stages + 1, B] i32: SpeechFrames::after for each stage
  TensorView sample_ids;     ///< [B] i64: a number that is unique for (source, epoch, utterance)
  TensorView labels;         ///< [B, U] i32, kIgnoredTarget beyond the length of a row
  TensorView label_lengths;  ///< [B] i32
  /// Addresses of the rows of audio in device memory, if they are there (ResidentAudio): `audio`
  /// then has no data, and rows are as long as audio_lengths says. Else nullptr.
  const std::byte* const* resident = nullptr;

  std::span<const SpeechRow> rows;  ///< its utterances; none in an empty micro-batch (B = 1)
  std::int64_t step = 0;            ///< steps since the start of training
  std::int64_t micro_batch = 0;  ///< global index within the step, or within the set in evaluation
  std::int64_t targets = 0;      ///< labels of this micro-batch
  /// Labels of all micro-batches of the step on all ranks: the divisor of summed losses. It
  /// includes the labels of utterances that turn out to be damaged, although they add no loss.
  std::int64_t step_targets = 0;
  std::int64_t samples = 0;             ///< audio samples without padding
  const SpeechCursor* after = nullptr;  ///< start of the next step, which a checkpoint stores
};

/// Memory of one batch, and a batch of views of it.
class SpeechBatchBuffer {
 public:
  /// `shapes` are the largest shapes that will occur. With `whole`, a batch is padded (also with
  /// empty rows) to the first shape that can hold it.
  SpeechBatchBuffer(std::span<const SpeechShape> shapes, const SpeechFrames& frames,
                    bool whole = false);
  SpeechBatchBuffer(const SpeechBatchBuffer&) = delete;
  SpeechBatchBuffer& operator=(const SpeechBatchBuffer&) = delete;

  /// Fills everything except the audio, which stays as it is: shapes, lengths, labels, ids.
  void lay_out(std::span<const SpeechRow> rows, const SpeechCorpus& corpus);
  /// Makes a row empty: no audio, no labels. Used for damaged utterances.
  void empty_row(std::int64_t row);
  std::size_t bytes() const;
  SpeechBatch batch;
  std::vector<const std::byte*> resident;  ///< memory of SpeechBatch::resident
  /// Memory behind `batch.rows` and `batch.after`.
  std::vector<SpeechRow> rows;
  SpeechCursor after;

 private:
  void set_lengths(std::int64_t row, std::int64_t samples, std::int64_t labels);

  /// The shape [B, S, U] of a batch of these rows.
  SpeechShape shape_of(std::span<const SpeechRow> of) const;

  SpeechFrames frames_;
  std::vector<SpeechShape> whole_;  // shapes that batches are padded to
  std::vector<std::uint16_t> audio_;
  std::vector<std::int32_t> audio_lengths_, frame_lengths_, labels_, label_lengths_;
  std::vector<std::int64_t> ids_;
};

/// Options of a validation set about what the model generates; the empty ones are those of the
/// deck.
struct GenerationOptions {
  std::optional<std::int64_t> answers, answer_tokens;  ///< eval.answers, eval.answer_tokens
  std::optional<std::int64_t> dialogues;               ///< eval.dialogues
  double temperature = 0;                              ///< 0: greedy
  std::int64_t top_k = 0;                              ///< 0: all
  double top_p = 1;
};

/// A validation set with its own name and options.
struct SpeechEvalSet {
  std::string name;
  std::vector<std::string> folders;
  SpeechFilter filter;                    ///< no filter by default: every utterance is scored
  double batch_duration = 0;              ///< seconds; 0: the value of training
  std::int64_t limit = 0;                 ///< maximum number of utterances, evenly spread; 0: all
  std::optional<std::int64_t> batches{};  ///< eval.batches of this set; 0: all
  /// The tags of each folder, by which results are grouped; empty if no folder has tags.
  std::vector<std::map<std::string, std::string>> tags{};
  GenerationOptions generation{};
};

/// The folders of a set with their tags.
std::vector<SpeechLeaf> leaves_of(const SpeechEvalSet& set);

struct SpeechDataConfig {
  SpeechMix train;  ///< if it has no inputs, only validation sets are opened
  std::vector<SpeechEvalSet> eval;
  std::string labels;      ///< NAME of labels.NAME.bin in every folder; "": none
  std::string own_labels;  ///< see SpeechCorpusOptions
  /// See SpeechCorpusOptions.
  std::function<LabelFile(const AudioCatalog&, bool validation)> make_labels;
  int sample_rate = 0;               ///< sample rate of the model; 0: the rate of the data
  std::uint64_t tokenizer_hash = 0;  ///< tokenizer of the checkpoint; 0: any
  std::int64_t vocab_size = 0;  ///< vocabulary of the model without the blank; 0: that of the data
  SpeechFrames frames;
  SpeechFilter filter;  ///< filter of the training data
  OnBad on_bad = OnBad::stop;
  double bad_cap = 0.01;  ///< largest share of bad utterances with OnBad::skip
  std::int64_t verify_bytes = std::int64_t{1} << 30;  ///< see SpeechCorpusOptions
  SpeechBucketOptions batching;
  std::int64_t window = 4096;    ///< utterances that are sorted into buckets together
  std::uint64_t order_seed = 0;  ///< speech_order_seed()
  ReaderOptions reader;
  /// Ranks that take the same samples; rank 0 reads them and sends them to the others. With nullptr
  /// each rank reads. Must outlive the data set.
  Communicator* peers = nullptr;
  int slots = 2;  ///< batches in memory; with 1 a batch is read when requested; see ReadAhead
};

/// The micro-batches that a rank requests: `places` in every step, every `stride`-th from index
/// `first` on; those from `micro_batches` on are empty.
struct SpeechOrder {
  SpeechCursor from;
  std::int64_t micro_batches = 1;  ///< global micro-batches of a step
  std::int64_t first = 0;
  std::int64_t places = 1;
  std::int64_t stride = 1;

  /// Rank r of d owns ceil(micro_batches / d) contiguous places.
  static SpeechOrder of_rank(SpeechCursor from, std::int64_t micro_batches, int rank, int ranks);
};

class SpeechDataset {
 public:
  /// Collective over `comm` (one rank for each part of the batch), which must outlive the data set,
  /// and over config.peers. One rank scans the file system and sends the result to the others.
  /// Throws on all ranks: DataError (files, rates, vocabularies, bad utterances), DeckError
  /// (settings).
  static std::unique_ptr<SpeechDataset> open(Communicator& comm, const SpeechDataConfig& config);
  /// Collective.
  ~SpeechDataset();
  SpeechDataset(const SpeechDataset&) = delete;
  SpeechDataset& operator=(const SpeechDataset&) = delete;

  std::int64_t vocab_size() const;  ///< without the blank
  std::uint64_t tokenizer_hash() const;
  int sample_rate() const;
  std::int64_t utterances() const;  ///< utterances that training draws from
  double hours() const;             ///< hours of those utterances
  const SpeechSift& sift() const;   ///< utterances that training leaves out, with reasons
  const SpeechSampler& sampler() const;
  const SpeechPadding& padding() const;
  /// The folders of training; the `leaf` of a row is an index into them.
  const std::vector<SpeechSource>& sources() const;
  /// Upper bounds of the micro-batches of training and of validation; see SpeechShape.
  const std::vector<SpeechShape>& shapes() const;
  const std::vector<SpeechShape>& eval_shapes() const;
  /// Lines about folders with their shares, utterances left out, buckets, padding compared with
  /// naive batching, validation sets, and the reader.
  std::string to_string() const;
  std::vector<std::pair<std::string, std::string>> hints() const;
  std::size_t bytes() const;  ///< host memory of this rank for batches and readers

  /// Device memory for the training audio with data.preload = "device"; 0 otherwise. On a device
  /// whose memory the host can use, it is that of the reader. Local.
  std::size_t resident_bytes(bool host_visible) const;
  /// Reads the training audio into the memory of the device, which must outlive the data set.
  /// Nothing is done if the host can use that memory, because the reader keeps the audio then.
  /// Collective over `comm`; called before start_training.
  void make_resident(Device& device);

  /// Collective. Starts reading ahead; another call (a new order) starts over. A step that begins
  /// at the cursor of a SpeechBatch::after continues bit for bit.
  void start_training(const SpeechOrder& order);
  /// Returns this rank's next training micro-batch, valid until slots - 1 further calls. All ranks
  /// must call it equally often. A failure on one rank is thrown on all ranks.
  const SpeechBatch& next();
  /// Seconds spent in next() since the start, that is the time by which reading delayed training.
  double wait_seconds() const;
  /// Lines about utterances found damaged since the last call, on ranks that read. Each utterance
  /// is reported once.
  std::vector<std::string> take_warnings();

  /// Evaluation. The micro-batches of a set contain each utterance once, longest first, for any
  /// number of ranks. In call c, rank r gets micro-batch c * ranks + r, or an empty one past the
  /// end.
  int eval_sets() const;
  const std::string& eval_name(int set) const;
  const SpeechSift& eval_sift(int set) const;
  std::int64_t eval_utterances(int set) const;
  std::int64_t eval_calls(int set) const;
  /// Collective. The batch is valid until the next call. Its step_targets are those of the whole
  /// set.
  const SpeechBatch& eval_batch(int set, std::int64_t call);
  /// Local. The reference text of a row of an eval batch.
  const std::string& eval_text(int set, const SpeechRow& row) const;
  /// Local. False if the vocabulary cannot write the text of the row, so that it has no loss.
  bool eval_has_labels(int set, const SpeechRow& row) const;
  /// Local. The texts of a set that the vocabulary cannot write.
  UnwritableTexts eval_unwritable(int set, const Vocabulary& vocabulary) const;
  /// Local. The recording of an utterance as its manifest names it, with its offset; see
  /// AudioCatalog::name().
  std::string eval_place(int set, std::int32_t leaf, std::int32_t utterance) const;
  /// The folders of a set; the `leaf` of a row is an index into them.
  const std::vector<SpeechLeaf>& eval_leaves(int set) const;

 private:
  struct State;
  explicit SpeechDataset(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace choir
