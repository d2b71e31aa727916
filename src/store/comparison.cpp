#include "src/store/comparison.hpp"

#include <fmt/core.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <functional>
#include <limits>
#include <span>

#include "src/store/encoding.hpp"
#include "src/store/state_file.hpp"

namespace choir {
namespace {

namespace fs = std::filesystem;

/// A tensor of a checkpoint and the file that has its bytes.
struct TensorPlace {
  TensorRecord record;
  std::string file;
};

std::map<std::string, TensorPlace> places_of(const Checkpoint& checkpoint) {
  const fs::path folder(checkpoint.path);
  std::map<std::string, TensorPlace> places;
  for (const TensorRecord& record : checkpoint.manifest.tensors)
    places[record.name] = {record, (folder / kStateName).string()};
  for (const BaseFile& base : checkpoint.manifest.bases)
    for (const TensorRecord& record : base.tensors)
      places[record.name] = {record, (fs::path(base.path) / kStateName).string()};
  return places;
}

/// The elements in which two tensors of one type and shape differ.
struct ElementDifference {
  std::int64_t first = -1;  ///< the first element whose bits differ; -1 if there is none
  // The following are known of reals alone. An element that is finite in only one of the tensors
  // makes them infinite or NaN.
  double largest = 0;   ///< of |a - b|
  double relative = 0;  ///< the largest |a - b| / max(|a|, |b|)
  double squares = 0;   ///< the sum of (a - b)^2
  double of_first = 0;  ///< the sum of a^2

  double norm() const { return std::sqrt(squares); }
  /// The norm of the difference as a part of the norm of `a`.
  double share() const { return squares == 0 ? 0 : std::sqrt(squares / of_first); }
};

void raise_to(double& largest, double value) {
  if (value > largest || std::isnan(value)) largest = value;
}

/// Adds the numbers of two arrays of reals to the difference.
void add_reals(ElementDifference& to, std::span<const double> a, std::span<const double> b) {
  for (std::size_t i = 0; i < a.size(); ++i) {
    to.of_first += a[i] * a[i];
    if (std::memcmp(&a[i], &b[i], sizeof a[i]) == 0) continue;
    const double distance = std::abs(a[i] - b[i]);
    const double scale = std::max(std::abs(a[i]), std::abs(b[i]));
    to.squares += distance * distance;
    raise_to(to.largest, distance);
    if (distance != 0) raise_to(to.relative, distance / scale);
  }
}

/// Compares two tensors of one type and shape, piece by piece.
ElementDifference difference_of(const TensorPlace& a, const TensorPlace& b) {
  constexpr std::int64_t kPiece = std::int64_t{1} << 22;
  const File one(a.file, File::Mode::read), other(b.file, File::Mode::read);
  const auto size = static_cast<std::int64_t>(size_of(a.record.dtype));
  const Encoding encoding = encoding_of(a.record.dtype);
  const bool reals = can_convert(encoding, Encoding::f64);
  std::vector<std::byte> left(kPiece), right(kPiece);
  std::vector<double> here, there;
  ElementDifference found;
  for (std::int64_t at = 0; at < a.record.bytes(); at += kPiece) {
    const std::int64_t bytes = std::min(kPiece, a.record.bytes() - at), count = bytes / size;
    one.read_at(left.data(), bytes, a.record.offset + at);
    other.read_at(right.data(), bytes, b.record.offset + at);
    const auto [differs, same] = std::mismatch(left.begin(), left.begin() + bytes, right.begin());
    if (found.first < 0 && differs != left.begin() + bytes)
      found.first = (at + (differs - left.begin())) / size;
    if (!reals) {
      if (found.first >= 0) break;
      continue;
    }
    here.resize(static_cast<std::size_t>(count));
    there.resize(static_cast<std::size_t>(count));
    for (const auto& [from, to] : {std::pair(&left, &here), std::pair(&right, &there)})
      convert(from->data(), encoding, reinterpret_cast<std::byte*>(to->data()), Encoding::f64,
              count);
    add_reals(found, here, there);
  }
  return found;
}

std::string text_of(const ElementDifference& difference, const TensorRecord& record) {
  std::string text =
      fmt::format("first at element {} of {}", difference.first, record.shape.count());
  if (!std::isfinite(difference.largest)) return text + "; a number is not finite";
  if (can_convert(encoding_of(record.dtype), Encoding::f64))
    text += fmt::format(
        "; largest difference {:.2e}, relative {:.2e}; norm of the difference {:.2e} of {:.2e}",
        difference.largest, difference.relative, difference.norm(), std::sqrt(difference.of_first));
  return text;
}

/// "parameters", "state", or "optimizer/m" of "optimizer/m/blocks.0.weight".
std::string group_of(const std::string& name) {
  const std::size_t first = name.find('/');
  return name.substr(0, name.starts_with("optimizer/") ? name.find('/', first + 1) : first);
}

std::string form_of(const TensorRecord& record) {
  return fmt::format("{} {}", name_of(record.dtype), to_string(record.shape));
}

}  // namespace

std::string CheckpointComparison::group_lines() const {
  std::string text;
  for (const auto& [name, group] : groups) {
    const std::size_t differ = group.tensors - group.equal - group.incomparable;
    text += fmt::format("  {}: {} of {} equal", name, group.equal, group.tensors);
    if (differ > 0)
      text += fmt::format(", {} differ{}", differ,
                          !group.measured ? ""
                          : std::isfinite(group.largest)
                              ? fmt::format(", at most by {:.1e}", group.largest)
                              : ", and some numbers are not finite");
    if (group.incomparable > 0)
      text += fmt::format(", {} in one of them alone or of another form", group.incomparable);
    text += "\n";
  }
  return text;
}

CheckpointComparison compare_tensors(const Checkpoint& a, const Checkpoint& b) {
  const std::map<std::string, TensorPlace> here = places_of(a), there = places_of(b);
  CheckpointComparison result{.groups = {}, .differences = {}, .tensors = here.size(), .bytes = 0};
  // Tensors that cannot be compared come first, then those with the largest share.
  std::multimap<double, std::string, std::greater<>> lines;
  constexpr double kWorst = std::numeric_limits<double>::infinity();
  const auto add_incomparable = [&](const std::string& name, const std::string& why) {
    ++result.groups[group_of(name)].incomparable;
    lines.emplace(kWorst, fmt::format("{}: {}", name, why));
  };
  for (const auto& [name, place] : here) {
    TensorGroup& group = result.groups[group_of(name)];
    ++group.tensors;
    const auto found = there.find(name);
    if (found == there.end()) {
      add_incomparable(name, "only in " + a.path);
      continue;
    }
    const TensorRecord &one = place.record, &two = found->second.record;
    result.bytes += one.bytes();
    if (one.dtype != two.dtype || one.shape != two.shape) {
      add_incomparable(name, form_of(one) + " and " + form_of(two));
      continue;
    }
    const ElementDifference difference = difference_of(place, found->second);
    if (difference.first < 0) {
      ++group.equal;
      continue;
    }
    if (can_convert(encoding_of(one.dtype), Encoding::f64)) {
      raise_to(group.largest, difference.largest);
      group.measured = true;
    }
    const double share = difference.share();
    lines.emplace(std::isnan(share) ? kWorst : share,
                  fmt::format("{}: {}", name, text_of(difference, one)));
  }
  for (const auto& [name, place] : there)
    if (!here.contains(name)) {
      ++result.groups[group_of(name)].tensors;
      add_incomparable(name, "only in " + b.path);
    }
  for (auto& [share, line] : lines) result.differences.push_back(std::move(line));
  return result;
}

}  // namespace choir
