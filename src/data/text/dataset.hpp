#pragma once
// The opened token data of a run: the paths in a deck as token streams and a vocabulary (the same
// on all ranks), training micro-batches that are read ahead, and validation windows.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "choir/comm/communicator.hpp"
#include "choir/device/device.hpp"
#include "src/data/text/documents.hpp"
#include "src/data/text/token_reader.hpp"
#include "src/data/text/token_samples.hpp"
#include "src/data/text/token_stream.hpp"
#include "src/data/vocabulary/vocabulary.hpp"

namespace choir {

struct DataConfig {
  /// Token files, folders of them, or text files and folders, which are prepared on first use.
  /// Without `val`, the validation part of a prepared folder or text is used if there is one.
  std::vector<std::string> train, val;
  /// The texts of a blend, which replace `train`, and a function from their lengths in tokens to
  /// its pools.
  std::vector<std::string> blend;
  std::vector<std::string> blend_names;  ///< names in the log; empty: their paths
  std::function<std::vector<TokenPool>(std::span<const std::int64_t> tokens)> pools;
  /// Further validation sets, {name, paths}; with them `val` is called "val". If `val` or one of
  /// these is given, no part of the training data is reserved for validation.
  std::vector<std::pair<std::string, std::vector<std::string>>> validation;
  std::map<std::string, std::int64_t> validation_limits;   ///< tokens used from the start of a set
  std::map<std::string, std::int64_t> validation_windows;  ///< instead of eval_windows, by set
  /// Open only validation data. If sets are named, the training data are not looked at, and the
  /// texts among the sets are encoded with the vocabulary of the checkpoint, given as JSON.
  bool evaluates = false;
  std::string trained_vocabulary;
  /// Use random tokens instead of files (fill_synthetic); requires vocab_size.
  bool synthetic = false;
  TokenFormat format = TokenFormat::automatic;
  ReaderOptions reader;

  // Text is prepared on first use into cache_dir/NAME-TOKENIZER-HASH/, where HASH covers the paths,
  // sizes and times of the text files.
  VocabularyKind tokenizer = VocabularyKind::character;
  double train_fraction = 0.9;
  /// The field of JSON lines and the column of Parquet that hold the text.
  std::string text_field = "text";
  /// Encode `train` while training, in the order of UnitOrder, and prepare no copy. Then
  /// `tokenizer` must be the bytes, or `tokenizer_file` be given; there is no blend; and no part of
  /// the text is reserved for validation.
  bool on_the_fly = false;
  std::string tokenizer_file;  ///< of text prepared on first use, too; "": `tokenizer`
  int text_threads = 2;        ///< that encode ahead on each rank that reads
  std::string cache_dir = "data/.prepared";
  std::function<void(const std::string&)>
      say;  ///< prints a line for the user on rank 0; may be empty

  std::uint64_t seed = 0;
  std::int64_t block_size = 0;
  std::int64_t rows = 0;          ///< samples per micro-batch
  std::int64_t vocab_size = 0;    ///< vocabulary of the model; 0: that of the data
  std::uint64_t vocab_hash = 0;   ///< hash of the checkpoint's vocabulary; 0: any
  std::int64_t eval_windows = 0;  ///< most validation windows; 0: all (synthetic: 8 * rows)
  /// The payload of files up to this size is checked when they are opened, each by one rank.
  std::int64_t verify_bytes = std::int64_t{64} << 20;
  /// Documents are separate, see documents.hpp. They end with the token `document_end`; below 0
  /// with that of the vocabulary, or token 0 of random tokens. The index of a file holds in any
  /// case.
  bool documents = false;
  std::int32_t document_end = -1;
  std::int64_t window = 0;  ///< of attention in some layers, for DocumentCounts; 0: none
  /// Ranks that take the same samples; rank 0 reads them and sends them to the others. With nullptr
  /// each rank reads. Must outlive the data set.
  Communicator* peers = nullptr;
  int slots = 2;  ///< batches in memory; with 1 a batch is read when requested; see Prefetcher
};

/// The micro-batches that a rank requests. A step is micro-batches [s*per_step, (s+1)*per_step);
/// this rank owns `per_rank` of them, every `stride`-th from `rank_offset` on. Micro-batch j
/// consists of samples first_sample + [j*rows, (j+1)*rows); resuming sets first_sample to the
/// samples consumed.
struct MicroBatchOrder {
  std::int64_t first_sample = 0;
  std::int64_t per_step = 1;
  std::int64_t rank_offset = 0;
  std::int64_t per_rank = 1;
  std::int64_t stride = 1;

  std::int64_t micro_batch(std::int64_t call) const {
    return call / per_rank * per_step + rank_offset + call % per_rank * stride;
  }
};

class Dataset {
 public:
  /// Collective over `comm` (one rank for each part of the batch), which must outlive the data set,
  /// and over config.peers. Rank 0 scans the file system and sends the result to the others. Throws
  /// on all ranks: DataError (files, vocabulary, too short), DeckError (settings), StorageError
  /// (first-use preparation).
  static std::unique_ptr<Dataset> open(Communicator& comm, const DataConfig& config);
  /// Collective.
  ~Dataset();
  Dataset(const Dataset&) = delete;
  Dataset& operator=(const Dataset&) = delete;

  std::int64_t vocab_size() const;         ///< vocabulary of the model, at least that of the data
  std::uint64_t vocab_hash() const;        ///< 0: unknown (raw files without vocab.json)
  const Vocabulary* vocabulary() const;    ///< null if there is no vocab.json beside the files
  std::int64_t train_tokens() const;       ///< 0 for synthetic data
  std::int64_t val_tokens() const;         ///< tokens of all validation sets
  std::int64_t windows_per_epoch() const;  ///< 0 for synthetic data: no epochs
  bool has_validation() const;
  /// "evaluates 1,600 of 3,232 windows ..." if eval_windows leaves out some, else "".
  std::string evaluated_part() const;
  /// A few lines: files, tokens, reader, preload.
  std::string to_string() const;
  /// Local; reads samples of the data. The same string for the same tokens, however they are
  /// divided into files; "" for synthetic data.
  std::string contents() const;
  /// The MPI-IO hints in effect (see data.hints); empty before the first read.
  std::vector<std::pair<std::string, std::string>> hints() const;
  std::size_t bytes() const;  ///< memory of this rank

  /// Device memory for the training tokens with data.preload = "device"; 0 otherwise. On a device
  /// whose memory the host can use, it is that of the reader. Local.
  std::size_t resident_bytes(bool host_visible) const;
  /// Reads the training tokens into the memory of the device, which must outlive the data set.
  /// Nothing is done if the host can use that memory, because the reader keeps the tokens then.
  /// Throws DeckError for separate documents, whose ends the host looks for. Collective over
  /// `comm`; called before start_training.
  void make_resident(Device& device);

  /// Collective. Starts reading ahead; another call (a new order) starts over.
  void start_training(const MicroBatchOrder& order);
  /// Returns this rank's next training micro-batch, valid until slots - 1 further calls. All ranks
  /// must call it equally often. A failure on one rank is thrown on all ranks.
  const Batch& next();
  /// With separate documents: the contents of step `step` since start_training on all ranks. See
  /// StepBatches::contents.
  const DocumentCounts& step_contents(std::int64_t step);
  /// Seconds spent in next() since the start, that is the time by which reading delayed training.
  double wait_seconds() const;

  /// Evaluation. Micro-batch e holds validation windows [e*rows, (e+1)*rows) for any number of
  /// ranks; in call c, rank r gets e = c*ranks + r. Rows past the end are padding (`valid` counts
  /// the other targets).
  std::int64_t eval_calls(int set = 0) const;
  /// Collective. The batch is valid until the next call.
  const Batch& eval_batch(std::int64_t call, int set = 0);
  int eval_sets() const;
  const std::string& eval_name(
      int set) const;  ///< "" if data.val or a part of the training data is the only set

 private:
  struct State;
  explicit Dataset(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace choir
