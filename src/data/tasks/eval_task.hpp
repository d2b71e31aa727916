#pragma once
// Evaluation tasks: files of JSON lines, one item per line, all of one kind. The kind follows from
// the keys. A file with a fault is refused with its line, because a task without its hardest item
// has another score. All functions are local and pure.
//
//   choices       {"context", "choices": [...], "answer": index from 0}, with "delimiter" (" ")
//                 between context and choice; "gold" is another name of "answer"
//   continuation  {"context", "continuation"}, with "delimiter" ("")
//   generation    {"context", "answer": text}, with "until": [...] (a line end) and "max_tokens"
//   text          {"text"}
//
// Every item may have "id" and "meta", which are not read. Few-shot examples are part of the
// context. The lines of a file may end with CR LF.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace choir {

enum class TaskKind {
  choices,       ///< the choice with the highest log-likelihood is compared with the answer
  continuation,  ///< the log-likelihood of one continuation
  generation,    ///< a text that the model generates is compared with the answer
  text           ///< the perplexity of a text
};
/// "choices", "continuation", "generation" or "text", as in files and messages.
std::string_view name_of(TaskKind kind);

struct TaskItem {
  std::string place;                 ///< "facts.jsonl:3"
  std::string context;               ///< for `text`, the text
  std::string delimiter;             ///< between context and choice; not part of the choice
  std::vector<std::string> choices;  ///< none is empty; one for `continuation`
  std::int64_t answer = 0;           ///< index of the right choice
  std::string reference;             ///< the text that `generation` expects
  std::vector<std::string> until;    ///< strings that end a generated text
  std::int64_t max_tokens = 0;       ///< of a generated text
};

struct EvalTask {
  std::string name;    ///< the file's name without folder and ".jsonl"
  std::string source;  ///< the path of the file
  TaskKind kind{};
  std::vector<TaskItem> items;  ///< at least one
};

/// Parses the contents of the file `source`. Throws DataError with file and line for a line that is
/// no item: it is not JSON (NaN included) or lacks a key, has an unknown one, an empty choice,
/// fewer than two choices, an answer that is none of them, or another kind than the first line; and
/// for a byte order mark, bytes that are not UTF-8, and a file without items.
EvalTask parse_task(std::string_view text, const std::string& source);

}  // namespace choir
