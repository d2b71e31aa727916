#pragma once
// Turns to token ids: the templates of chat models, rendered turn by turn with control tokens by
// id, and which of the tokens a model is trained on. Pure but for the tokenizer's cache.
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "choir/data/conversations/conversation.hpp"

namespace choir {

class BpeTokenizer;
class Vocabulary;

/// Text to ids and back, with control tokens that are never found in a text. Used by one thread.
class ChatTokenizer {
 public:
  virtual ~ChatTokenizer() = default;
  /// Throws DataError for what the vocabulary cannot write; `source` names the text.
  virtual std::vector<std::int32_t> encode(std::string_view text, std::string_view source) = 0;
  /// The id of a control token such as "<|im_end|>".
  virtual std::optional<std::int32_t> control(std::string_view token) const = 0;
  /// Control tokens are written, too.
  virtual std::string decode(std::vector<std::int32_t> ids) const = 0;
  virtual int vocab_size() const = 0;  ///< control tokens among them
  virtual std::uint64_t hash() const = 0;
};

enum class ChatTemplate { plain, llama2, llama3, chatml, mistral };
/// "plain", "llama2", "llama3", "chatml" (also "qwen"), "mistral"; DeckError for another name.
ChatTemplate chat_template_of(std::string_view name);
std::string_view name_of(ChatTemplate chat);
/// What a chat_template of transformers or llama.cpp writes, by the marks in it, which are those of
/// one family each: the program itself is not run. Nothing for one that is not known.
std::optional<ChatTemplate> template_written_by(std::string_view jinja);
/// The template whose control tokens the tokenizer has; DataError that asks for a name where none
/// has them all.
ChatTemplate guess_template(const ChatTokenizer& tokenizer);

/// Encodes with a tokenizer.json, which must have the control tokens itself.
std::unique_ptr<ChatTokenizer> chat_tokenizer(BpeTokenizer tokenizer);
/// Encodes with a vocabulary. Control tokens of the template that are not among its own, as they
/// are in SentencePiece models of Llama 2 and Mistral, get the ids behind its entries, in the order
/// <s>, </s> / <|im_start|>, <|im_end|> / <|begin_of_text|>,
/// <|start_header_id|>,
/// <|end_header_id|>, <|eot_id|>. Plain: </s>.
std::unique_ptr<ChatTokenizer> chat_tokenizer(Vocabulary vocabulary, ChatTemplate chat);
/// Local. A tokenizer.json, what `choir prepare tokenizer` or `prepare text` wrote (vocab.json), a
/// .model of SentencePiece, or the words "byte"; `chat` "" guesses from the control tokens.
struct OpenedTokenizer {
  std::unique_ptr<ChatTokenizer> tokenizer;
  ChatTemplate chat = ChatTemplate::plain;
  std::string json;       ///< of the tokenizer, to keep beside the data ...
  std::string file_name;  ///< ... under this name
};
OpenedTokenizer open_chat_tokenizer(const std::string& name, const std::string& chat);

/// How conversations became ids: what stands beside them, and what a checkpoint keeps so that
/// prompts are written alike.
struct ChatForm {
  std::string chat_template;  ///< its name; "" where it is not known
  std::string system;         ///< ChatOptions::system
  std::string tokenizer;      ///< the text of its file; "" for none

  /// Vocabulary::from_json reads the tokenizer out of it.
  std::string to_json() const;
  /// A text that to_json() did not write is a tokenizer without a template. Throws DataError.
  static ChatForm from_json(const std::string& json, const std::string& source);
};
/// As above, from texts. Throws DataError: no tokenizer, a damaged one.
OpenedTokenizer open_chat_tokenizer(const ChatForm& form, const std::string& source);
/// Local. The same of a vocabulary that a checkpoint has (TrainingData::vocabulary_json, or a
/// ChatForm, whose template `chat` "" takes) for a model of `model_ids` ids; `source` names it.
/// DataError also where the control tokens of the template are not what the model has behind the
/// entries of its vocabulary.
OpenedTokenizer chat_tokenizer_of(const std::string& json, const std::string& chat,
                                  std::int64_t model_ids, const std::string& source);

/// In ids, where a clip stands. It is no id of any vocabulary, so it reaches no embedding.
inline constexpr std::int32_t kAudioPlaceholder = -1;

struct EncodedConversation {
  std::vector<std::int32_t> ids;      ///< kAudioPlaceholder for each clip
  std::vector<std::uint8_t> counted;  ///< of each id: whether it is a target
  std::vector<AudioClip> clips;
};

struct ChatOptions {
  ChatTemplate chat = ChatTemplate::chatml;
  /// A system's turn for conversations without one, as Qwen2 and SmolLM2 have; "": none.
  std::string system;
};

/// Targets are the tokens of the assistant's answers and the one that ends each of these turns:
/// neither headers nor the line end behind it (NeMo trains on them, which teaches what is given at
/// generation anyway). A conversation that does not end with an answer gets the header of one, for
/// generation (answer_follows). Where the system has no turn of its own in the template it stands
/// at the front of the first turn of the user. Throws DataError: a control token that the tokenizer
/// lacks, text that it cannot write.
EncodedConversation encode_conversation(const Conversation& conversation,
                                        const ChatOptions& options, ChatTokenizer& tokenizer);
/// The token that ends an answer.
std::int32_t end_of_turn(ChatTemplate chat, const ChatTokenizer& tokenizer);

/// Text with the counted tokens between the marks, one line a turn, for people.
std::string show_encoded(const EncodedConversation& encoded, const ChatTokenizer& tokenizer,
                         std::string_view before, std::string_view behind);

}  // namespace choir
