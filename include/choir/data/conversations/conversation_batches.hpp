#pragma once
// Micro-batches of conversations with clips of audio, for models that hear: host memory, read
// ahead, the same for any number of ranks. Buckets, blends, windows and positions are those of
// speech (choir/data/speech/speech_sampler.hpp), with rows of the language model in place of
// samples.
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "choir/data/conversations/conversation_corpus.hpp"
#include "choir/data/speech/speech_dataset.hpp"
#include "choir/data/speech/speech_sampler.hpp"

namespace choir {

/// No micro-batch is larger than one of these in all.
struct ConversationShape {
  std::int64_t rows = 0, tokens = 0;    ///< B, T: conversations, tokens and frames of a row
  std::int64_t clips = 0, samples = 0;  ///< N, S: at least 1 and one frame of the encoder
  friend bool operator==(const ConversationShape&, const ConversationShape&) = default;
};

/// Views of memory that somebody else owns.
struct ConversationBatch {
  TensorView audio;             ///< [N, S] i16 PCM (held as u16), 0 from a clip's length on
  TensorView audio_lengths;     ///< [N] i32, samples; 0: a clip of padding
  TensorView frame_lengths;     ///< [stages + 1, N] i32: SpeechFrames::after of each stage
  TensorView clip_ids;          ///< [N] i64: one number for each (epoch, conversation, clip)
  TensorView splice;            ///< [B*T] i32: a token's id, or -1-r for row r of the clips [N*T']
  TensorView targets;           ///< [B*T] i32: the next token where it counts, else -1
  TensorView lengths;           ///< [B] i32: rows that count; 0: padding
  TensorView conversation_ids;  ///< [B] i64

  std::int64_t rows = 0, tokens = 0, clips = 0;  ///< B, T, N
  std::int64_t clip_rows = 0;                    ///< T' of a padded clip
  std::span<const SpeechRow> drawn;  ///< what the rows are; none in an empty micro-batch (B = 1)
  std::int64_t step = 0, micro_batch = 0;
  std::int64_t counted = 0;             ///< targets of this micro-batch
  std::int64_t step_targets = 0;        ///< ... of all micro-batches of the step on all ranks
  std::int64_t audio_samples = 0;       ///< without padding
  const SpeechCursor* after = nullptr;  ///< where the next step begins
};

struct ConversationConfig {
  SpeechMix train;                  ///< without inputs: only validation sets are opened
  std::vector<SpeechEvalSet> eval;  ///< without filters and durations
  SpeechFrames frames;
  int sample_rate = 0;                 ///< of the model; 0: that of the data
  std::int64_t vocab_size = 0;         ///< of the model; 0: any
  std::uint64_t vocab_hash = 0;        ///< of the checkpoint; 0: any
  std::int64_t batch_tokens = 4096;    ///< rows of a micro-batch, padding included
  std::int64_t max_tokens = 0;         ///< longer conversations are left out; 0: batch_tokens
  std::int64_t max_conversations = 0;  ///< of a micro-batch; 0: any number
  int buckets = 8;
  std::int64_t window = 4096;  ///< conversations that buckets are made of
  std::uint64_t order_seed = 0;
  int slots = 2;  ///< batches held at a time
};

class ConversationBatches {
 public:
  /// Collective over `world`, the ranks that open the same data (all of a mesh). `rank` and `ranks`
  /// divide validation: this rank's place along the data axis. Throws on all ranks: DataError,
  /// DeckError.
  static std::unique_ptr<ConversationBatches> open(Communicator& world, int rank, int ranks,
                                                   const ConversationConfig& config);
  ~ConversationBatches();
  ConversationBatches(const ConversationBatches&) = delete;
  ConversationBatches& operator=(const ConversationBatches&) = delete;

  const ConversationCorpus& corpus() const;  ///< of training, else of the first validation set
  const SpeechSampler& sampler() const;      ///< of training
  const std::vector<ConversationShape>& shapes() const;
  const std::vector<ConversationShape>& eval_shapes() const;
  /// Lines: folders with shares, what was left out, buckets, share of padding, validation sets.
  std::string to_string() const;
  std::size_t bytes() const;  ///< of batches held by this rank

  /// Local: every rank reads what it asks for (ranks that share a batch each read it). Begins
  /// reading ahead; called again it starts anew.
  void start_training(const SpeechOrder& order);
  /// Holds until slots - 1 further calls. Throws DataError for damaged audio.
  const ConversationBatch& next();
  double wait_seconds() const;

  int eval_sets() const;
  const std::string& eval_name(int set) const;
  const ConversationCorpus& eval_corpus(int set) const;
  std::int64_t eval_conversations(int set) const;
  /// Calls in which every rank has one micro-batch of the set, perhaps an empty one.
  std::int64_t eval_calls(int set) const;
  /// Local. In call c rank r gets micro-batch c * ranks + r; longest first. Its step_targets are
  /// those of the set.
  const ConversationBatch& eval_batch(int set, std::int64_t call);

 private:
  struct State;
  explicit ConversationBatches(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace choir
