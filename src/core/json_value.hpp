#pragma once
// JSON values are those of nlohmann/json, which only this header includes. Its parser and printer
// are compiled once, behind these functions, and not in every source that reads or writes a
// document. JSON from files is read strictly, in time linear in its size: a text is refused with
// its position and a plain cause if it is malformed, gives a key twice in one object, is nested too
// deeply, or would need far more memory than its own size. The functions with parsed_... are for
// documents that this program wrote itself.

#include <cstddef>
#include <nlohmann/json.hpp>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "choir/core/error.hpp"

namespace choir {

struct JsonLimits {
  std::size_t depth = 64;     ///< nesting of lists and objects
  std::size_t keys = 10'000;  ///< in one object
  bool comments = false;      ///< accept // and /* */
  /// Refuse integers of more than 64 bits, which would lose digits as floating-point numbers.
  bool exact_integers = false;
};

/// The first fault of a text.
struct JsonFault {
  std::string cause;       ///< without its position
  bool malformed = false;  ///< the text is not JSON; otherwise its content is refused
  std::size_t offset = 0, line = 1, column = 1;  ///< bytes before it; position from 1
};

/// what() is "SOURCE:LINE:COLUMN: CAUSE".
class JsonError : public DataError {
 public:
  JsonError(const std::string& what, std::string hint, JsonFault fault)
      : DataError(what, std::move(hint)), fault_(std::move(fault)) {}
  const JsonFault& fault() const { return fault_; }

 private:
  JsonFault fault_;
};

/// A value of JsonLimits::keys for objects that are tables.
inline constexpr std::size_t kAnyNumberOfKeys = ~std::size_t{0};

/// Pure. `source` names the file in messages. Throws JsonError.
nlohmann::json read_json(std::string_view text, const std::string& source,
                         const JsonLimits& limits = {});
nlohmann::ordered_json read_ordered_json(std::string_view text, const std::string& source,
                                         const JsonLimits& limits = {});
/// The same for one line of a file. `place` is "FILE:LINE"; messages append the column.
nlohmann::json read_json_line(std::string_view line, const std::string& place,
                              const JsonLimits& limits = {});
nlohmann::ordered_json read_ordered_json_line(std::string_view line, const std::string& place,
                                              const JsonLimits& limits = {});

/// Receives the members of large tables, so that they take no memory in the document.
class JsonTables {
 public:
  virtual ~JsonTables() = default;
  /// Paths of the objects and lists that are tables: "model.vocab".
  virtual std::vector<std::string> paths() const = 0;
  /// `table` is an index into paths(); `key` is empty in a list.
  virtual void add(std::size_t table, const std::string& key, const nlohmann::json& value) = 0;
  /// Called when a table is complete. Returns a key that occurs twice in it, if there is one.
  virtual std::optional<std::string> end(std::size_t table) = 0;
};
/// The document, in which the tables are empty.
nlohmann::json read_json_tables(std::string_view text, const std::string& source,
                                const JsonLimits& limits, JsonTables& tables);

/// Bytes of memory that the values of a text may occupy: 8 times its size, at least 16 MiB.
std::size_t most_json_bytes(std::size_t text_bytes);

/// The document on one line, or indented. Throws nlohmann's exception for text that is not UTF-8.
std::string dumped(const nlohmann::json& value, int indent = -1);
std::string dumped(const nlohmann::ordered_json& value, int indent = -1);
/// The same, with U+FFFD for bytes that are not UTF-8.
std::string dumped_safely(const nlohmann::json& value, int indent = -1);
std::string dumped_safely(const nlohmann::ordered_json& value, int indent = -1);

/// Throw nlohmann's exception if the text is not JSON.
nlohmann::json parsed_json(std::string_view text);
nlohmann::ordered_json parsed_ordered_json(std::string_view text);
/// The same for text with C++ comments.
nlohmann::ordered_json parsed_commented_json(std::string_view text);
/// A discarded value if the text is not JSON.
nlohmann::json json_unless_broken(std::string_view text);
nlohmann::ordered_json ordered_json_unless_broken(std::string_view text);

}  // namespace choir

extern template class nlohmann::basic_json<>;
extern template class nlohmann::basic_json<nlohmann::ordered_map>;
