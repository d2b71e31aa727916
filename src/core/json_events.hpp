#pragma once
// Shared parts of the handlers of the JSON library's events: the number of bytes read, which the
// library reports only for errors, and the plain cause of a syntax error.

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <string>
#include <string_view>

#include "src/core/json_value.hpp"

namespace choir {

/// Thrown by the handlers: the position and the cause of a fault.
struct JsonProblem {
  std::size_t offset = 0;
  std::string cause, hint;
  bool malformed = false;

  /// The cause, with an introduction if it is a syntax error.
  std::string message() const { return (malformed ? "not valid JSON: " : "") + cause; }
};

/// Counts the bytes that the lexer has read.
class CountingIterator {
 public:
  using iterator_category = std::forward_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  CountingIterator() = default;
  CountingIterator(const char* at, std::size_t* read) : at_(at), read_(read) {}
  reference operator*() const { return *at_; }
  CountingIterator& operator++() {
    ++at_, ++*read_;
    return *this;
  }
  CountingIterator operator++(int) {
    CountingIterator old = *this;
    ++*this;
    return old;
  }
  friend bool operator==(const CountingIterator& a, const CountingIterator& b) {
    return a.at_ == b.at_;
  }

 private:
  const char* at_ = nullptr;
  std::size_t* read_ = nullptr;
};

/// Line and column from 1 of a byte offset, and the text of that line.
struct JsonPosition {
  std::size_t line = 1, column = 1;
  std::string_view text;
};
JsonPosition json_position(std::string_view text, std::size_t offset);

/// The cause of the library's error in choir's words. `position` is the number of bytes read.
JsonProblem json_problem(std::string_view text, std::size_t position,
                         const nlohmann::json::exception& error);

/// The offset of a string's opening quote; `end` is the offset after its closing quote.
std::size_t string_start(std::string_view text, std::size_t end);

/// Base of all handlers, with the events that need no handling. A handler hides those that it
/// handles.
struct JsonEvents {
  using number_integer_t = nlohmann::json::number_integer_t;
  using number_unsigned_t = nlohmann::json::number_unsigned_t;
  using number_float_t = nlohmann::json::number_float_t;
  using string_t = nlohmann::json::string_t;
  using binary_t = nlohmann::json::binary_t;

  std::string_view text;
  const std::size_t* read;

  std::size_t offset() const { return std::min(*read, text.size()); }
  bool binary(binary_t&) { return false; }
  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::json::exception& error) {
    throw json_problem(text, position, error);
  }
};

/// Sends the events of `text` to `handler(text, read)`, which must derive from JsonEvents.
template <class Handler>
void send_json_events(std::string_view text, std::size_t& read, Handler& handler, bool comments) {
  const CountingIterator first(text.data(), &read), last(text.data() + text.size(), &read);
  nlohmann::json::sax_parse(first, last, &handler, nlohmann::json::input_format_t::json, true,
                            comments);
}

}  // namespace choir
