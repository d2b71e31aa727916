#include "src/core/json_value.hpp"
#include "src/core/quantities.hpp"
#include "src/data/sources/text_source.hpp"

namespace choir {

void DamagedRows::add(const std::string& reason, std::int64_t order,
                      const std::function<std::string()>& place) {
  Reason& here = reasons_[reason];
  if (here.count++ == 0 || order < here.order) here.order = order, here.first = place();
}

void DamagedRows::add(const DamagedRows& other) {
  for (const auto& [reason, theirs] : other.reasons_) {
    Reason& here = reasons_[reason];
    if (here.count == 0 || theirs.order < here.order)
      here.order = theirs.order, here.first = theirs.first;
    here.count += theirs.count;
  }
}

std::int64_t DamagedRows::count() const {
  std::int64_t sum = 0;
  for (const auto& [reason, here] : reasons_) sum += here.count;
  return sum;
}

std::string DamagedRows::to_string() const {
  if (reasons_.empty()) return {};
  std::string text = counted(count(), "row") + " left out: ";
  for (const auto& [reason, here] : reasons_)
    text += fmt::format("{}{} {} (first {})", text.ends_with(": ") ? "" : ", ", reason, here.count,
                        here.first);
  return text;
}

std::string DamagedRows::serialise() const {
  auto all = nlohmann::json::array();
  for (const auto& [reason, here] : reasons_)
    all.push_back(nlohmann::json::array({reason, here.count, here.order, here.first}));
  const auto bytes = nlohmann::json::to_cbor(all);
  return {bytes.begin(), bytes.end()};
}

DamagedRows DamagedRows::deserialise(std::string_view bytes) {
  DamagedRows rows;
  for (const auto& one : nlohmann::json::from_cbor(bytes))
    rows.reasons_[one[0].get<std::string>()] = {
        one[1].get<std::int64_t>(), one[2].get<std::int64_t>(), one[3].get<std::string>()};
  return rows;
}

}  // namespace choir
