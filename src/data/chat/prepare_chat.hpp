#pragma once
// Converts conversations of JSON lines to a folder that training reads: conversations.chat, the
// tokenizer's file, meta.json and, if there are clips, packed audio in audio/.

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "choir/comm/communicator.hpp"
#include "choir/core/log.hpp"

namespace choir {

struct PrepareChatOptions {
  std::string tokenizer = "byte";  ///< see open_chat_tokenizer
  /// ChatForm::to_json() of a checkpoint, if its tokenizer is used; `tokenizer` is then its name.
  std::string stored{};
  std::string chat_template;    ///< "": from the control tokens, else plain
  std::string system;           ///< system turn of conversations without one
  std::string context;          ///< question of cuts that contain none
  std::int64_t max_tokens = 0;  ///< longer conversations are excluded; 0: none
  int sample_rate = 16000;
  std::vector<std::string> tars;  ///< see read_conversations
  /// Every held_out-th conversation is left out, or with `held` only these are kept; 0: none.
  std::int64_t held_out = 0;
  bool held = false;
};

struct PrepareChatSummary {
  std::string folder, chat_template, dropped;
  std::string unused;  ///< keys of the lines that are not used, with their counts
  std::int64_t conversations = 0, turns = 0, tokens = 0, counted = 0, clips = 0;
  std::int64_t longest = 0;  ///< tokens of the longest conversation
  double seconds = 0;        ///< of the clips; on rank 0
  std::int64_t vocab_size = 0;
  std::string to_string() const;
};

/// Restores the folder of a request that is refused: a new folder is removed again, and the files
/// of an older result return. Made before prepare_chat(), on the rank that writes. Local.
class ChatFolderUndo {
 public:
  /// Links the files of an older result under other names. Those that a killed process left there
  /// return, unless it had completed a new result.
  explicit ChatFolderUndo(std::string folder);
  /// Restores the folder unless keep() was called.
  ~ChatFolderUndo();
  ChatFolderUndo(const ChatFolderUndo&) = delete;
  ChatFolderUndo& operator=(const ChatFolderUndo&) = delete;
  /// Keeps the new result, and removes the old files.
  void keep();

 private:
  std::string folder_;
  bool kept_ = false, began_ = false;
  std::set<std::string> before_;  // names in the folder
};

/// Collective over `world`: rank 0 reads and writes text, all ranks pack audio. Refuses a folder
/// that contains anything but an older result. Throws DataError, DeckError and StorageError on all
/// ranks.
PrepareChatSummary prepare_chat(Communicator& world, Logger& log,
                                const std::vector<std::string>& files, const std::string& folder,
                                const PrepareChatOptions& options);

/// Local. The first `count` conversations, each with its position in the files and its tokens;
/// targets are between `before` and `behind`.
std::string show_chat(const std::vector<std::string>& files, std::int64_t count,
                      const PrepareChatOptions& options, std::string_view before,
                      std::string_view behind);

}  // namespace choir
