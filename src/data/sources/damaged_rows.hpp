#pragma once
// The count of rows that a source of text leaves out because they are damaged, by reason.

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>

namespace choir {

class DamagedRows {
 public:
  /// Counts a row. `reason` is one of a few phrases ("no field 'text'"). `place` gives the file
  /// with the line, row or member; it is called for the first row of a reason only, because it may
  /// have to count lines. `order` sorts places in the order of the units.
  void add(const std::string& reason, std::int64_t order,
           const std::function<std::string()>& place);
  /// Adds the counts of another rank.
  void add(const DamagedRows& other);

  std::int64_t count() const;
  /// "3 rows left out: not valid JSON 2 (first a.jsonl:4), ..."; "" for none.
  std::string to_string() const;

  /// Conversion to and from bytes, to send them to another rank.
  std::string serialise() const;
  static DamagedRows deserialise(std::string_view bytes);

 private:
  struct Reason {
    std::int64_t count = 0, order = 0;  ///< `order` of the first place
    std::string first;
  };
  std::map<std::string, Reason> reasons_;
};

}  // namespace choir
