#pragma once
// Conversations as training data of a language model: their batches, and the packing of several
// short conversations into one row of a block with attention within each (block-diagonal; pure).

#include <algorithm>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "choir/run/training_data.hpp"
#include "src/data/chat/conversation_corpus.hpp"
#include "src/data/text/dataset.hpp"
#include "src/data/text/token_samples.hpp"
#include "src/data/vocabulary/vocabulary.hpp"
#include "src/models/gpt/family.hpp"

namespace choir {

struct PackedRow {
  std::vector<std::int64_t> documents;  ///< indices of the packed documents, in order
  std::vector<std::int32_t> begins;     ///< first position of each document, and the end
};

/// Assigns documents that arrive one by one to rows: each goes to the oldest open row with room for
/// it. At most `open` rows are open at a time.
class RowPacker {
 public:
  explicit RowPacker(std::int64_t block, std::int64_t open = 64);
  /// The row of the next document, of 1 to `block` inputs. Rows are numbered as they are opened.
  std::int64_t add(std::int64_t length);
  /// All rows with a smaller number are finished.
  std::int64_t finished() const { return open_.empty() ? rows_ : open_.front().row; }

 private:
  struct Open {
    std::int64_t row, used;
  };
  std::int64_t block_, most_, rows_ = 0;
  std::vector<Open> open_;  // oldest first
};

/// First fit in the given order, as in RowPacker. The order is that of training, so the result
/// depends on the seed alone. `lengths` are numbers of inputs. Throws DataError for a length above
/// `block`.
std::vector<PackedRow> pack_rows(std::span<const std::int64_t> lengths, std::int64_t block,
                                 std::int64_t open = 64);

/// Inputs, targets and positions of one row. The target of the last token of a document is ignored:
/// no document predicts the first token of the next one. Positions restart with every document.
struct PackedTokens {
  std::vector<std::int32_t> inputs, targets, positions;  ///< [block]
  std::vector<std::int32_t> begins;                      ///< as in PackedRow
};
/// `ids` holds n + 1 ids of each document for n inputs; `counted` marks the targets.
PackedTokens packed_tokens(std::span<const std::span<const std::int32_t>> ids,
                           std::span<const std::span<const std::uint8_t>> counted,
                           std::int64_t block);

// Conversations as training data of language models. Each one is a row of model.block_size tokens,
// padded on the right, with the loss on answers alone; with data.pack a row holds as many as fit.
// Sample i of a run is draw i of the blend, or row i of its packed draws, for any number of ranks.

/// Collective over the mesh. True if the deck names conversations (`choir prepare chat`); all of
/// its paths or none must be conversations, else DataError. For evaluation alone (`evaluates`) the
/// training data are not looked at if the deck names validation data.
bool trains_on_chat(const Deck& deck, Mesh& mesh, bool evaluates = false);

/// A validation set and its rows.
struct ChatEvalSet {
  std::string name;
  ConversationCorpus corpus;
  std::vector<SpeechItem> items;  ///< that are evaluated
  std::int64_t all_items = 0;
  std::vector<std::vector<SpeechItem>> rows;  ///< the items of each row
};

/// Iterates over the rows that the draws of a blend fill. A sample number below the previous one
/// starts again from the beginning.
class ChatRows {
 public:
  /// `packed`: packs draws into rows of `block` inputs; otherwise each draw is a row.
  ChatRows(SpeechBlend blend, std::int64_t block, bool packed);
  /// The conversations of a row, valid until the next call.
  const std::vector<SpeechItem>& row(std::int64_t sample);
  const SpeechBlend& blend() const { return blend_; }

 private:
  void begin();
  SpeechItem draw();

  SpeechBlend blend_;
  std::int64_t block_;
  bool packed_;
  std::int64_t draws_ = 0;
  std::vector<std::int64_t> drawn_;  // draws from each pool
  std::optional<RowPacker> packer_;
  std::int64_t first_ = 0;  // index of the first of rows_
  std::deque<std::vector<SpeechItem>> rows_;
};

/// The validation sets of a deck.
class ChatValidation {
 public:
  /// Collective over the mesh. `vocab_hash` 0 accepts any vocabulary.
  ChatValidation(const Deck& deck, std::int64_t rows, std::uint64_t vocab_hash, Mesh& mesh);
  const std::vector<ChatEvalSet>& sets() const { return sets_; }
  /// The micro-batches of each rank, if `ranks` divide a set.
  std::int64_t calls(int set, int ranks) const;
  /// Local. A micro-batch of a set, valid until the next call; empty beyond the end.
  const Batch& batch(int set, std::int64_t micro_batch);
  /// Collective over the mesh of the instance.
  EvaluationResult evaluate(ModelInstance& instance, ProgressLine* progress);

 private:
  std::int64_t rows_;
  BatchBuffer buffer_;
  std::vector<ChatEvalSet> sets_;
};

/// The length and the number of rows, and what is in them.
struct RowFill {
  std::int64_t block = 0, rows = 0;
  std::int64_t conversations = 0, tokens = 0, longest = 0;
  bool packed = false;
  double padding() const {
    return 1 - static_cast<double>(tokens) /
                   static_cast<double>(std::max<std::int64_t>(rows * block, 1));
  }
};
/// Tells how rows of which more than half is padding become fuller, with the keys to set and the
/// padding that then remains; "" for other rows, and where nothing helps. Pure.
std::string padding_advice(const RowFill& fill, const GptConfig& model);

class ChatTrainingData final : public TrainingData {
 public:
  /// Warns about rows that are mostly padding.
  ChatTrainingData(const Deck& deck, const BatchSizes& batch, Mesh& mesh, Logger& log);

  std::int64_t vocab_size() const override { return corpus_.vocab_size(); }
  std::uint64_t vocab_hash() const override { return corpus_.vocab_hash(); }
  std::string vocabulary_json() const override;
  std::string to_string() const override;
  std::string contents() const override;
  std::vector<std::pair<std::string, std::string>> hints() const override { return {}; }
  void require_resumable(std::int64_t consumed_samples) const override;
  void start_training(const Sharding& sharding, std::int64_t per_rank,
                      const Position& from) override;
  ModelBatch next() override;
  StepContent content(std::int64_t step, const Model& model) override;
  bool has_validation() const override { return !validation_.sets().empty(); }
  EvaluationResult validate(ModelInstance& instance, ProgressLine* progress) override {
    return validation_.evaluate(instance, progress);
  }
  /// The model's answer to the first conversation of the first validation set.
  std::string sample(ModelInstance& instance, ProgressLine* progress) override;

 private:
  std::vector<SpeechSource> sources() const;
  RowFill fill() const;

  GptSettings settings_;
  std::uint64_t seed_;
  std::int64_t block_size_;
  BatchSizes batch_;
  Mesh& mesh_;
  SpeechMix mix_;
  ConversationCorpus corpus_;
  std::optional<Vocabulary> vocabulary_;
  ChatRows reading_, planning_;
  ChatValidation validation_;
  MicroBatchOrder order_;
  std::int64_t calls_ = 0, first_step_ = 0, first_sample_ = 0;
  BatchBuffer buffer_;
};

class ChatEvaluationData final : public EvaluationData {
 public:
  ChatEvaluationData(const Deck& deck, const std::string& vocabulary, Mesh& mesh, Logger& log);
  std::vector<BatchShape> shapes() const override {
    return {{.samples = kRows, .tokens = block_size_}};
  }
  EvaluationResult evaluate(ModelInstance& instance, ProgressLine* progress) override {
    return validation_.evaluate(instance, progress);
  }

 private:
  static constexpr std::int64_t kRows = 8;
  std::int64_t block_size_;
  ChatValidation validation_;
};

}  // namespace choir
