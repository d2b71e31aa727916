// The tokenizer files of a run (RUN/tokenizer), which a run that begins with its weights takes
// along.

#include <fmt/core.h>

#include <algorithm>
#include <filesystem>
#include <vector>

#include "choir/core/error.hpp"
#include "src/core/text.hpp"
#include "src/data/vocabulary/vocabulary.hpp"
#include "src/data/vocabulary/vocabulary_model.hpp"
#include "src/run/imported_run.hpp"

namespace choir {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kCarried = "tokenizer of ";

std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder))
    names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

/// False as well if one of the texts describes something other than the tokens of a text.
bool have_same_tokens(const std::string& a, const std::string& b) {
  try {
    return same_tokens(Vocabulary::from_json(a, "the checkpoint"),
                       Vocabulary::from_json(b, "the training data"));
  } catch (const DataError&) {
    return false;
  }
}

}  // namespace

std::string run_folder_of(const std::string& path) {
  const fs::path whole = fs::path(path).lexically_normal();
  for (fs::path folder = whole; !folder.empty(); folder = folder.parent_path()) {
    std::error_code ignored;
    if (fs::exists(folder / "deck.json", ignored)) return folder.string();
    if (folder == folder.parent_path()) break;
  }
  return whole.string();
}

std::string carry_tokenizer(const std::string& from, const std::string& to,
                            const std::string& theirs, const std::string& ours) {
  const fs::path source = fs::path(run_folder_of(from)) / kTokenizerFolder;
  const fs::path target = fs::path(to) / kTokenizerFolder;
  std::error_code failure;
  if (!fs::is_directory(source, failure) || fs::equivalent(source, target, failure)) return "";
  const std::string files = join(names_in(source), ", ");
  const auto left_out = [&](const char* why) {
    return fmt::format("left out: {} of {}, because {}", files, source.string(), why);
  };
  if (!ours.empty()) {
    if (theirs.empty())
      return left_out("it is not known whether the training data have its vocabulary");
    if (!have_same_tokens(theirs, ours))
      return left_out("the training data have another vocabulary");
  }
  fs::create_directories(target, failure);
  fs::copy(source, target, fs::copy_options::overwrite_existing | fs::copy_options::recursive,
           failure);
  if (failure)
    throw StorageError(
        fmt::format("cannot copy {} to {}: {}", source.string(), to, failure.message()),
        "free space, or choose another run.dir");
  return fmt::format("{}{}: {}", kCarried, source.parent_path().string(), files);
}

std::vector<std::string> carry_tokenizer_of_parts(
    const std::map<std::string, std::string>& vocabularies, const std::string& to,
    const std::string& ours) {
  std::vector<std::string> left_out;
  for (const auto& [path, theirs] : vocabularies) {
    const std::string line = carry_tokenizer(path, to, theirs, ours);
    if (line.starts_with(kCarried)) return {line};
    if (!line.empty()) left_out.push_back(line);
  }
  return left_out;
}

}  // namespace choir
