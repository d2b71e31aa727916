#include "src/deck/key_reader.hpp"

#include <fmt/core.h>

#include "choir/core/error.hpp"
#include "src/core/text.hpp"

namespace choir {
namespace {

constexpr std::int64_t kMost = std::int64_t{1} << 30;

/// Formats a value for a message.
std::string shown(const nlohmann::json& value) {
  constexpr std::size_t kMostCharacters = 60;
  std::string text = dumped_safely(value);
  if (text.size() > kMostCharacters) text = text.substr(0, kMostCharacters) + "...";
  return text;
}

}  // namespace

KeyReader::KeyReader(const nlohmann::json& object, std::string source, std::string prefix)
    : object_(object), source_(std::move(source)), prefix_(std::move(prefix)) {
  if (!object_.is_object())
    throw DeckError(fmt::format("'{}' is not a JSON object", source_),
                    "expected the configuration of a model");
}

bool KeyReader::has(const std::string& key) const {
  const auto at = object_.find(key);
  return at != object_.end() && !at->is_null();
}

const nlohmann::json* KeyReader::value(const std::string& key) {
  asked_.insert(key);
  return has(key) ? &object_.at(key) : nullptr;
}

std::int64_t KeyReader::whole(const std::string& key, std::int64_t otherwise, std::int64_t least) {
  const nlohmann::json* found = value(key);
  if (found == nullptr) return otherwise;
  if (found->is_number_integer() && *found >= least && *found <= kMost)
    return found->get<std::int64_t>();
  problem(key, fmt::format("expected a whole number from {} to {}", least, kMost));
  return otherwise;
}

std::int64_t KeyReader::needed(const std::string& key) {
  if (!has(key)) {
    asked_.insert(key);
    problems_.push_back(prefix_ + key + " is missing");
    return 1;
  }
  const std::int64_t found = whole(key, 1);
  if (found < 1) problem(key, "expected at least 1");
  return found < 1 ? 1 : found;
}

double KeyReader::real(const std::string& key, double otherwise) {
  const nlohmann::json* found = value(key);
  if (found == nullptr) return otherwise;
  if (found->is_number() && found->get<double>() > 0) return found->get<double>();
  problem(key, "expected a number above 0");
  return otherwise;
}

bool KeyReader::flag(const std::string& key, bool otherwise) {
  const nlohmann::json* found = value(key);
  if (found == nullptr) return otherwise;
  if (found->is_boolean()) return found->get<bool>();
  problem(key, "expected true or false");
  return otherwise;
}

std::string KeyReader::text(const std::string& key, const std::string& otherwise) {
  const nlohmann::json* found = value(key);
  if (found == nullptr) return otherwise;
  if (found->is_string()) return found->get<std::string>();
  problem(key, "expected a string");
  return otherwise;
}

void KeyReader::only(const std::string& key, const nlohmann::json& legal, const std::string& why) {
  const nlohmann::json* found = value(key);
  if (found != nullptr && *found != legal) problem(key, why);
}

void KeyReader::harmless(const std::vector<std::string>& keys) {
  asked_.insert(keys.begin(), keys.end());
}

void KeyReader::problem(const std::string& key, const std::string& why) {
  problems_.push_back(fmt::format("{}{} = {}: {}", prefix_, key,
                                  has(key) ? shown(object_.at(key)) : "nothing", why));
}

std::vector<std::string> KeyReader::problems(bool allow_unknown) const {
  std::vector<std::string> all = problems_;
  if (allow_unknown) return all;
  for (const auto& [key, held] : object_.items())
    if (!held.is_null() && !asked_.contains(key))
      all.push_back(
          fmt::format("{}{} = {}: unknown key, which may change what the model computes "
                      "(--allow-unused ignores it)",
                      prefix_, key, shown(held)));
  return all;
}

void KeyReader::finish(bool allow_unknown) const {
  refuse_problems(source_, problems(allow_unknown));
}

void refuse_problems(const std::string& source, const std::vector<std::string>& problems) {
  if (problems.empty()) return;
  throw DeckError(fmt::format("'{}' describes a model that cannot be imported:\n  {}", source,
                              join(problems, "\n  ")));
}

}  // namespace choir
