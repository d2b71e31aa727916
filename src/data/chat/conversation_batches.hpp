#pragma once
// Micro-batches of conversations with clips of audio, for models with audio input. They are in host
// memory, read ahead, and the same for any number of ranks. Buckets, blends, windows and positions
// are those of speech (src/data/sampling/sampler.hpp), with rows of the language model in
// place of samples.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "src/data/chat/conversation_corpus.hpp"
#include "src/data/sampling/sampler.hpp"
#include "src/data/speech/speech_dataset.hpp"

namespace choir {

/// An upper bound of the sizes of a micro-batch. Every micro-batch fits into one of the shapes.
struct ConversationShape {
  std::int64_t rows = 0, tokens = 0;    ///< B, T: conversations, tokens and frames of a row
  std::int64_t clips = 0, samples = 0;  ///< N, S: at least 1 and one frame of the encoder
  friend bool operator==(const ConversationShape&, const ConversationShape&) = default;
};

/// Views of memory owned by ConversationBatches.
struct ConversationBatch {
  TensorView audio;             ///< [N, S] i16 PCM (stored as u16); 0 after a clip's end
  TensorView audio_lengths;     ///< [N] i32, samples; 0: a clip of padding
  TensorView frame_lengths;     ///< [stages + 1, N] i32: SpeechFrames::after of each stage
  TensorView clip_ids;          ///< [N] i64, unique for (epoch, conversation, clip)
  TensorView splice;            ///< [B*T] i32: token id, or -1-r for row r of the clips [N*T']
  TensorView targets;           ///< [B*T] i32: the next token if it is a target, else -1
  TensorView lengths;           ///< [B] i32: valid rows; 0: padding
  TensorView conversation_ids;  ///< [B] i64

  std::int64_t rows = 0, tokens = 0, clips = 0;  ///< B, T, N
  std::int64_t clip_rows = 0;                    ///< T' of a padded clip
  std::span<const SpeechRow> drawn;  ///< the conversations; none in an empty micro-batch (B = 1)
  std::int64_t step = 0, micro_batch = 0;
  std::int64_t counted = 0;             ///< targets of this micro-batch
  std::int64_t step_targets = 0;        ///< targets of the step over all ranks
  std::int64_t audio_samples = 0;       ///< without padding
  const SpeechCursor* after = nullptr;  ///< position of the next step
};

struct ConversationConfig {
  SpeechMix train;                  ///< without inputs only validation sets are opened
  std::vector<SpeechEvalSet> eval;  ///< their durations are those of all clips of a conversation
  SpeechFrames frames;
  int sample_rate = 0;                 ///< of the model; 0: rate of the data
  std::int64_t vocab_size = 0;         ///< of the model; 0: any
  std::uint64_t vocab_hash = 0;        ///< of the checkpoint; 0: any
  std::int64_t batch_tokens = 4096;    ///< rows of a micro-batch including padding
  std::int64_t max_tokens = 0;         ///< longer conversations are left out; 0: batch_tokens
  std::int64_t max_conversations = 0;  ///< of a micro-batch; 0: any number
  int buckets = 8;
  std::int64_t window = 4096;  ///< conversations sorted into buckets at a time
  std::uint64_t order_seed = 0;
  int slots = 2;  ///< batches in memory at a time
};

class ConversationBatches {
 public:
  /// Collective over `world`, the ranks that open the same data (all of a mesh). `rank` and `ranks`
  /// divide validation: they are this rank's index on the data axis and its size. Throws DataError
  /// and DeckError on all ranks.
  static std::unique_ptr<ConversationBatches> open(Communicator& world, int rank, int ranks,
                                                   const ConversationConfig& config);
  ~ConversationBatches();
  ConversationBatches(const ConversationBatches&) = delete;
  ConversationBatches& operator=(const ConversationBatches&) = delete;

  const ConversationCorpus& corpus() const;  ///< training, or the first validation set
  const SpeechSampler& sampler() const;      ///< sampler of the training data
  const std::vector<ConversationShape>& shapes() const;
  const std::vector<ConversationShape>& eval_shapes() const;
  /// Lines for the log: folders with shares, excluded conversations, buckets, share of padding,
  /// validation sets.
  std::string to_string() const;
  std::size_t bytes() const;  ///< memory of the batches on this rank

  /// Local: every rank reads the micro-batches that it requests (ranks that share a batch each read
  /// it). Starts reading ahead; a further call starts again.
  void start_training(const SpeechOrder& order);
  /// The batch is valid until slots - 1 further calls. Throws DataError for damaged audio.
  const ConversationBatch& next();
  double wait_seconds() const;

  int eval_sets() const;
  const std::string& eval_name(int set) const;
  const ConversationCorpus& eval_corpus(int set) const;
  std::int64_t eval_conversations(int set) const;
  /// Number of calls in which every rank gets one micro-batch of the set, possibly an empty one.
  std::int64_t eval_calls(int set) const;
  /// Local. In call c rank r gets micro-batch c * ranks + r; the longest come first. Its
  /// step_targets are those of the whole set.
  const ConversationBatch& eval_batch(int set, std::int64_t call);

 private:
  struct State;
  explicit ConversationBatches(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace choir
