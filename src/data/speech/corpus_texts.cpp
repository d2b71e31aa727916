#include "choir/data/speech/corpus_texts.hpp"

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "choir/core/error.hpp"
#include "choir/core/text.hpp"

namespace choir {
namespace {

namespace fs = std::filesystem;

std::ifstream open(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file || fs::is_directory(path))
    throw DataError(fmt::format("cannot open '{}'", path),
                    "texts are read from text files, NeMo manifests and folders that 'choir "
                    "prepare audio' wrote");
  return file;
}

bool is_manifest(const std::string& path) {
  std::ifstream file = open(path);
  std::string line;
  while (std::getline(file, line))
    if (!trim(line).empty()) return trim(line).front() == '{';
  return false;
}

std::string text_of(const std::string& line, const std::string& path, std::int64_t number) {
  const auto parsed = nlohmann::json::parse(line, nullptr, false);
  if (!parsed.is_object())
    throw DataError(fmt::format("{}:{} is not a JSON object", path, number + 1),
                    "every line of a manifest is one, such as {\"audio_filepath\": ..., "
                    "\"duration\": 1.5, \"text\": \"...\"}");
  const auto text = parsed.find("text");
  if (text == parsed.end() || text->is_null()) return "";
  if (!text->is_string())
    throw DataError(fmt::format("{}:{}: \"text\" is not a string", path, number + 1));
  return text->get<std::string>();
}

void keep(std::vector<std::string>& texts, std::string_view text) {
  text = trim(text);
  if (!text.empty()) texts.emplace_back(text);
}

}  // namespace

void read_manifest_texts(const std::string& path,
                         const std::function<void(std::int64_t, std::string&&)>& use) {
  std::ifstream file = open(path);
  std::string line;
  for (std::int64_t number = 0; std::getline(file, line); ++number)
    use(number, text_of(line, path, number));
}

std::vector<std::string> read_corpus_texts(const std::vector<std::string>& paths) {
  std::vector<std::string> texts;
  for (const std::string& given : paths) {
    const std::string path = fs::is_directory(given) ? given + "/manifest.jsonl" : given;
    const std::size_t before = texts.size();
    if (is_manifest(path)) {
      read_manifest_texts(path, [&](std::int64_t, std::string&& text) { keep(texts, text); });
    } else {
      std::ifstream file = open(path);
      for (std::string line; std::getline(file, line);) keep(texts, line);
    }
    if (texts.size() == before) throw DataError(fmt::format("there is no text in '{}'", path));
  }
  return texts;
}

}  // namespace choir
