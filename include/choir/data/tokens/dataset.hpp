#pragma once
// The data of a run, opened: training micro-batches read ahead, validation windows, the vocabulary.
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "choir/comm/communicator.hpp"
#include "choir/data/tokens/batch.hpp"
#include "choir/data/tokens/token_blend.hpp"
#include "choir/data/tokens/token_reader.hpp"
#include "choir/data/tokens/token_stream.hpp"
#include "choir/data/vocabulary/vocabulary.hpp"

namespace choir {

struct DataConfig {
  /// Token files, folders of them, or text files and folders, which are prepared on first use.
  /// Without `val`, the validation part of a prepared folder or text is taken, if there is one.
  std::vector<std::string> train, val;
  /// The texts of a blend, instead of `train`, and its pools for texts of so many tokens.
  std::vector<std::string> blend;
  std::vector<std::string> blend_names;  ///< what the log calls them; empty: as their paths
  std::function<std::vector<TokenPool>(std::span<const std::int64_t> tokens)> pools;
  /// Further validation sets, {name, paths}; `val` is the set "val" beside them. With `val` or
  /// these no part of the training data is kept for validation.
  std::vector<std::pair<std::string, std::vector<std::string>>> validation;
  std::map<std::string, std::int64_t> validation_limits;  ///< tokens from the start of some sets
  /// Random tokens instead of files (fill_synthetic); needs vocab_size.
  bool synthetic = false;
  TokenFormat format = TokenFormat::automatic;
  ReaderOptions reader;

  // For text prepared on first use, into cache_dir/NAME-TOKENIZER-HASH/ where HASH covers the
  // paths, sizes and times of the text files.
  VocabularyKind tokenizer = VocabularyKind::character;
  double train_fraction = 0.9;
  std::string cache_dir = "data/.prepared";
  std::function<void(const std::string&)>
      say;  ///< lines for people, called on rank 0; may be empty

  std::uint64_t seed = 0;
  std::int64_t block_size = 0;
  std::int64_t rows = 0;         ///< samples in a micro-batch
  std::int64_t vocab_size = 0;   ///< of the model; 0: take that of the data
  std::uint64_t vocab_hash = 0;  ///< of the checkpoint; 0: any
  std::int64_t eval_windows =
      0;  ///< at most so many validation windows; 0: all (synthetic: 8 * rows)
  /// Files up to this size have their payload checked when opened, each by one rank.
  std::int64_t verify_bytes = std::int64_t{64} << 20;
  /// Ranks that take the same samples, of which rank 0 reads and tells the others; nullptr: each
  /// reads. Must outlive the data set.
  Communicator* peers = nullptr;
  int slots = 2;  ///< batches held at a time; 1: read when asked for. See Prefetcher
};

/// Which micro-batches a rank asks for. A step is micro-batches [s*per_step, (s+1)*per_step); this
/// rank owns `per_rank` of them, every `stride`-th from `rank_offset` on. Micro-batch j is made of
/// samples first_sample + [j*rows, (j+1)*rows); resuming sets first_sample to the samples consumed.
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
  /// and over config.peers. Rank 0 looks at the file system and tells the others. Throws on all
  /// ranks: DataError (files, vocabulary, too short), DeckError (settings), StorageError (first-use
  /// preparation).
  static std::unique_ptr<Dataset> open(Communicator& comm, const DataConfig& config);
  /// Collective.
  ~Dataset();
  Dataset(const Dataset&) = delete;
  Dataset& operator=(const Dataset&) = delete;

  std::int64_t vocab_size() const;         ///< of the model's, at least the data's
  std::uint64_t vocab_hash() const;        ///< 0: unknown (raw files without vocab.json)
  const Vocabulary* vocabulary() const;    ///< null where no vocab.json is beside the files
  std::int64_t train_tokens() const;       ///< 0 for synthetic data
  std::int64_t val_tokens() const;         ///< of all validation sets
  std::int64_t windows_per_epoch() const;  ///< 0 for synthetic data: no epochs
  bool has_validation() const;
  /// A few lines: files, tokens, reader, preload.
  std::string to_string() const;
  /// Local, reads a little. Equal for the same tokens in whatever files; "" for synthetic data.
  std::string contents() const;
  /// What MPI made of data.hints; empty before the first read.
  std::vector<std::pair<std::string, std::string>> hints() const;
  std::size_t bytes() const;  ///< held by this rank

  /// Collective. Begins reading ahead; called again (a new order) it starts anew.
  void start_training(const MicroBatchOrder& order);
  /// This rank's next training micro-batch; holds until slots - 1 further calls. All ranks must ask
  /// equally often. Throws on all ranks what failed on one.
  const Batch& next();
  /// Seconds spent in next() since the start: time that reading was not hidden.
  double wait_seconds() const;

  /// Evaluation. Micro-batch e holds validation windows [e*rows, (e+1)*rows), whatever the number
  /// of ranks; in call c rank r gets e = c*ranks + r. Rows past the end are padding (valid counts
  /// the rest).
  std::int64_t eval_calls(int set = 0) const;
  /// Collective; the batch holds until the next call.
  const Batch& eval_batch(std::int64_t call, int set = 0);
  int eval_sets() const;
  const std::string& eval_name(int set) const;  ///< "" where data.val or a part of train is alone

 private:
  struct State;
  explicit Dataset(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace choir
