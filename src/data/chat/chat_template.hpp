#pragma once
// Converts turns to token ids with the templates of chat models. Each turn is rendered with control
// tokens by id, and the tokens on which a model is trained are marked. Pure functions except for
// the tokenizer's cache.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "src/data/chat/conversation.hpp"

namespace choir {

class BpeTokenizer;
class ChatProgram;  // src/data/chat/chat_program.hpp
class Vocabulary;

/// The place of a text that is converted by itself: at the start of the conversation, behind a
/// control token, or behind other text. SentencePiece adds a blank in front of some of them.
enum class ChatPlace { start, behind_token, inside };

/// Converts text to ids and back. Control tokens are never matched in a text. Only one thread may
/// use it.
class ChatTokenizer {
 public:
  virtual ~ChatTokenizer() = default;
  /// Throws DataError for text that the vocabulary cannot encode; `source` names the text.
  virtual std::vector<std::int32_t> encode(std::string_view text, std::string_view source) = 0;
  /// The same as the model's own tokenizer converts a part of a conversation.
  virtual std::vector<std::int32_t> encode_at(std::string_view text, std::string_view source,
                                              ChatPlace) {
    return encode(text, source);
  }
  /// The texts of all control tokens, for which control() has an id.
  virtual std::vector<std::string> controls() const { return {}; }
  /// The id of a control token such as "<|im_end|>".
  virtual std::optional<std::int32_t> control(std::string_view token) const = 0;
  /// The result includes control tokens.
  virtual std::string decode(std::vector<std::int32_t> ids) const = 0;
  virtual int vocab_size() const = 0;  ///< includes the control tokens
  virtual std::uint64_t hash() const = 0;
};

/// `own`: the Jinja program of the model's own files (ChatProgram); the others are built in.
enum class ChatTemplate {
  plain,
  llama2,
  llama3,
  chatml,
  mistral,
  gemma,
  phi3,
  phi4,
  phi4_mini,
  olmo2,
  granite,
  own
};
inline constexpr const char* kChatTemplates =
    "plain, llama2, llama3, chatml (qwen), mistral, gemma, phi3, phi4, phi4_mini, olmo2 or "
    "granite";
/// A name of kChatTemplates (also "qwen"), or "own"; DeckError for another name.
ChatTemplate chat_template_of(std::string_view name);
std::string_view name_of(ChatTemplate chat);
/// The template of a Jinja chat_template of transformers or llama.cpp. The Jinja program is not
/// run; it is recognised by the marks that it contains, which differ between families. std::nullopt
/// for an unknown one.
std::optional<ChatTemplate> template_written_by(std::string_view jinja);
/// The template whose control tokens the tokenizer has. Throws a DataError that asks for a name if
/// no template has all its tokens.
ChatTemplate guess_template(const ChatTokenizer& tokenizer);

/// Encodes with a tokenizer.json, which must have the control tokens itself.
std::unique_ptr<ChatTokenizer> chat_tokenizer(BpeTokenizer tokenizer);
/// Encodes with a vocabulary. Control tokens of the template that the vocabulary lacks
/// (SentencePiece models of Llama 2 and Mistral have theirs) get the ids after its entries, in the
/// order <s>, </s> / <|im_start|>, <|im_end|> / <|begin_of_text|>, <|start_header_id|>,
/// <|end_header_id|>, <|eot_id|>. Plain: </s>.
std::unique_ptr<ChatTokenizer> chat_tokenizer(Vocabulary vocabulary, ChatTemplate chat);
/// A tokenizer opened by open_chat_tokenizer(). Local. The name is a tokenizer.json, a file that
/// `choir prepare tokenizer` or `prepare text` wrote (vocab.json), a .model of SentencePiece, or
/// "byte". With `chat` "" or "own" the template is that of the files beside it
/// (ChatProgram::beside); if there is none, "" guesses one from the control tokens.
struct OpenedTokenizer {
  std::unique_ptr<ChatTokenizer> tokenizer;
  ChatTemplate chat = ChatTemplate::plain;
  std::shared_ptr<const ChatProgram> program;  ///< of the template `own`; else nullptr
  std::string system;                          ///< ChatForm::system of a stored form
  std::string json;                            ///< text of the tokenizer, stored beside the data
  std::string file_name;                       ///< file name of this text
};
OpenedTokenizer open_chat_tokenizer(const std::string& name, const std::string& chat);

/// Describes how conversations were converted to ids. It is stored beside them and in checkpoints,
/// so that prompts are rendered in the same form.
struct ChatForm {
  std::string chat_template;                             ///< its name; "" if unknown
  std::string system;                                    ///< ChatOptions::system
  std::string tokenizer;                                 ///< the text of its file; "" for none
  std::shared_ptr<const ChatProgram> program = nullptr;  ///< of the template `own`

  /// JSON from which Vocabulary::from_json() reads the tokenizer.
  std::string to_json() const;
  /// A text that to_json() did not write is read as a tokenizer without a template. Throws
  /// DataError.
  static ChatForm from_json(const std::string& json, const std::string& source);
};
/// The same from stored texts. Throws DataError if the tokenizer is missing or damaged.
OpenedTokenizer open_chat_tokenizer(const ChatForm& form, const std::string& source);
/// Local. The same for the vocabulary of a checkpoint (TrainingData::vocabulary_json or a ChatForm;
/// `chat` "" takes the template of the ChatForm) and a model of `model_ids` ids; `source` names it.
/// Throws DataError also if the control tokens of the template are not the ids that the model has
/// after the entries of its vocabulary.
OpenedTokenizer chat_tokenizer_of(const std::string& json, const std::string& chat,
                                  std::int64_t model_ids, const std::string& source);

/// Marks the position of a clip in a list of ids. It is not an id of any vocabulary, so it never
/// reaches an embedding.
inline constexpr std::int32_t kAudioPlaceholder = -1;

struct EncodedConversation {
  std::vector<std::int32_t> ids;      ///< kAudioPlaceholder for each clip
  std::vector<std::uint8_t> counted;  ///< for each id: 1 if it is a target
  std::vector<AudioClip> clips;
};

struct ChatOptions {
  ChatTemplate chat = ChatTemplate::chatml;
  /// System turn for conversations without one; "": none, or that of the program.
  std::string system;
  std::shared_ptr<const ChatProgram> program = nullptr;  ///< of the template `own`
};

/// Targets are the tokens of the assistant's answers and the token that ends each of these turns,
/// but neither the headers nor the line end after it (NeMo trains on these too, although generation
/// supplies them). A conversation that does not end with an answer gets the header of one for
/// generation (answer_follows). If the template has no system turn, its text is put in front of the
/// first user turn. Throws DataError for a control token that the tokenizer lacks and for text that
/// it cannot encode.
EncodedConversation encode_conversation(const Conversation& conversation,
                                        const ChatOptions& options, ChatTokenizer& tokenizer);
/// The token that ends an answer, not for the template `own`.
std::int32_t end_of_turn(ChatTemplate chat, const ChatTokenizer& tokenizer);
/// The same for any template.
std::int32_t end_of_turn(const OpenedTokenizer& opened);

/// Text with the targets between the marks, one line per turn, for people.
std::string show_encoded(const EncodedConversation& encoded, const ChatTokenizer& tokenizer,
                         std::string_view before, std::string_view behind);

// The templates as Jinja programs, in which transformers and llama.cpp store them. Such a program
// writes the text that encode_conversation() converts to ids piece by piece.

/// The token that ends an answer, as text.
std::string end_of_turn_text(ChatTemplate chat, const ChatTokenizer& tokenizer);
std::string end_of_turn_text(const OpenedTokenizer& opened);

struct JinjaOptions {
  std::string system;  ///< ChatOptions::system
  /// A blank precedes an answer of llama2 and mistral. SentencePiece adds it to every text that it
  /// encodes by itself, but other programs encode the whole conversation at once.
  bool blank_before_answer = false;
};
/// The program reads `messages`, with `role` and `content`, and `add_generation_prompt`. Pure.
std::string jinja_program(ChatTemplate chat, const ChatTokenizer& tokenizer,
                          const JinjaOptions& options);

/// The program with a system turn for conversations without one.
std::string with_standing_system(const std::string& program, const std::string& system);

}  // namespace choir
