#pragma once
// A deck with which a model is fine-tuned on prepared conversations: what depends on the data (the
// length of rows, batches, steps) is computed from them, and everything else is that of the run
// whose weights it begins with.
#include <cstdint>
#include <string>

#include "choir/comm/communicator.hpp"
#include "choir/deck/family_table.hpp"
#include "src/models/gpt/gpt_config.hpp"

namespace choir {

/// Conversations as a deck needs them.
struct ChatSize {
  std::int64_t conversations = 0, tokens = 0;
  std::int64_t longest = 0;     ///< tokens of the longest conversation
  double seconds = 0;           ///< of recordings
  std::int64_t vocab_size = 0;  ///< tokens that they may contain, those that end turns included
};

/// The length of packed rows: about eight conversations of mean length, and at least the longest
/// one, in multiples of 64 (of 16 below that), at most the positions of the model. Positions that
/// are learned keep the model's length, because the table of the weights has it. Pure.
std::int64_t chat_row_length(const ChatSize& size, const GptConfig& model);

struct ChatDeckRequest {
  const FamilyTable* families = nullptr;  ///< those of the program; must be set
  std::string run;                        ///< the run directory to begin with
  std::int64_t tokens = 0;                ///< CheckpointTokens::tokens of the run
  std::string encoder;  ///< of conversations with recordings: the run of a recogniser, else ""
  std::string folder;   ///< of the prepared conversations
  std::string held;     ///< of those for validation, or ""
  ChatSize size;        ///< of those for training
};

struct ChatDeck {
  std::string text;     ///< with comments that give the reasons
  std::string run_dir;  ///< of the run that the deck makes
  std::string summary;  ///< the choices in a line
};

/// The tokenizer file in RUN/tokenizer with which conversations for this run are prepared, or "" if
/// it has none. Throws DeckError if there is no such folder. Local.
std::string tokenizer_of_run(const std::string& run);
/// The newest checkpoint of a run has its tokenizer, as ChatForm::from_json() reads it ("" for
/// none), and the number of tokens of its model.
struct CheckpointTokens {
  std::string tokenizer;
  std::int64_t tokens = 0;
};
/// Throws StorageError if there is no checkpoint. Collective.
CheckpointTokens tokens_of_checkpoint(const std::string& run, Communicator& world);

/// Throws DeckError as chat_deck() does if the runs are not of these kinds, before anything is
/// prepared for them. Local.
void require_chat_runs(const ChatDeckRequest& request);

/// Reads RUN/deck.json, and that of the encoder. With an encoder the deck is that of a model with
/// model.type = "salm", in which both are frozen, and an adapter, a projector and LoRA are trained.
/// Throws DeckError if the runs are not of a language model (model.type = "gpt") and a recogniser
/// ("fastconformer"), if conversations with recordings come without an encoder or an encoder
/// without recordings, if the conversations have more tokens than the model, and if the longest
/// conversation does not fit the model's positions. Local.
ChatDeck chat_deck(const ChatDeckRequest& request);

}  // namespace choir
