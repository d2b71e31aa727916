#include "src/data/text/text_index.hpp"

#include <atomic>
#include <exception>
#include <filesystem>
#include <mutex>
#include <numeric>
#include <thread>

#include "choir/core/error.hpp"
#include "src/comm/agreement.hpp"
#include "src/core/file.hpp"
#include "src/core/hash.hpp"
#include "src/core/json_value.hpp"
#include "src/data/text/text_files.hpp"

namespace choir {

UnitIds encode_unit(const TextSource& source, std::size_t unit, const Vocabulary& vocabulary,
                    const std::function<bool()>& stopped) {
  UnitIds made;
  const bool documents = source.has_documents(unit);
  const std::vector<std::int32_t> end =
      documents ? end_of_document(vocabulary) : std::vector<std::int32_t>{};
  source.read(
      unit,
      [&](std::string_view text, std::int64_t row) {
        if (stopped && stopped()) return;
        append_ids(vocabulary, source, unit, row, text, made.ids);
        made.ids.insert(made.ids.end(), end.begin(), end.end());
        made.documents += documents ? 1 : 0;
      },
      made.damaged);
  return made;
}

std::int64_t TextIndex::tokens() const {
  return std::accumulate(units.begin(), units.end(), std::int64_t{0},
                         [](std::int64_t sum, const Unit& unit) { return sum + unit.tokens; });
}

std::uint32_t TextIndex::crc() const {
  std::uint32_t crc = 0;
  for (const Unit& unit : units) {
    const std::int64_t of_unit[2] = {unit.tokens, unit.crc};
    crc = crc32c(of_unit, sizeof of_unit, crc);
  }
  return crc;
}

std::string TextIndex::serialise() const {
  auto all = nlohmann::json::array();
  for (const Unit& unit : units) all.push_back(nlohmann::json::array({unit.tokens, unit.crc}));
  const std::string rows = damaged.serialise();
  const auto bytes = nlohmann::json::to_cbor(nlohmann::json::array({all, documents, rows}));
  return {bytes.begin(), bytes.end()};
}

TextIndex TextIndex::deserialise(std::string_view bytes) {
  const auto parts = nlohmann::json::from_cbor(bytes);
  TextIndex index;
  for (const auto& unit : parts[0])
    index.units.push_back({unit[0].get<std::int64_t>(), unit[1].get<std::uint32_t>()});
  index.documents = parts[1].get<std::int64_t>();
  index.damaged = DamagedRows::deserialise(parts[2].get<std::string>());
  return index;
}

namespace {

constexpr std::string_view kIndexMark = "choir text index 1\n";

/// Encodes the units of a rank with several threads. Only the counts are kept.
class IndexBuilder {
 public:
  IndexBuilder(const TextSource& source, const Vocabulary& vocabulary)
      : source_(source), vocabulary_(vocabulary) {
    index_.units.resize(source.units().size());
  }

  /// The counts of every `stride`-th unit from `first` on; the others are 0.
  TextIndex run(std::size_t first, std::size_t stride, int threads) {
    next_ = first;
    std::vector<std::thread> running;
    for (int i = 1; i < threads; ++i) running.emplace_back([&] { work(stride); });
    work(stride);
    for (std::thread& thread : running) thread.join();
    if (failure_) std::rethrow_exception(failure_);
    return std::move(index_);
  }

 private:
  void work(std::size_t stride) {
    for (;;) {
      const std::size_t unit = next_.fetch_add(stride);
      if (unit >= index_.units.size() || failed_) return;
      try {
        const UnitIds made =
            encode_unit(source_, unit, vocabulary_, [this] { return failed_.load(); });
        const std::lock_guard lock(mutex_);
        index_.units[unit] = {std::ssize(made.ids),
                              crc32c(made.ids.data(), made.ids.size() * sizeof made.ids[0])};
        index_.documents += made.documents;
        index_.damaged.add(made.damaged);
      } catch (...) {
        const std::lock_guard lock(mutex_);
        if (!failure_ || unit < failed_unit_) failure_ = std::current_exception();
        failed_unit_ = std::min(failed_unit_, unit);
        failed_ = true;
      }
    }
  }

  const TextSource& source_;
  const Vocabulary& vocabulary_;
  std::atomic<std::size_t> next_ = 0;
  std::atomic<bool> failed_ = false;
  std::mutex mutex_;
  TextIndex index_;  // this and the members below are protected by the mutex
  std::exception_ptr failure_;
  std::size_t failed_unit_ = SIZE_MAX;
};

/// The index in a file, if it is there and whole.
std::string kept_index(const std::string& file) {
  std::error_code ignored;
  if (file.empty() || !std::filesystem::exists(file, ignored)) return {};
  const std::string bytes = read_whole_file(file, kMostListMiB);
  if (!bytes.starts_with(kIndexMark))
    throw DataError(fmt::format("'{}' is no index of texts", file),
                    "remove it; it is made again from the texts");
  return bytes.substr(kIndexMark.size());
}

void keep_index(const std::string& file, const std::string& bytes) {
  if (file.empty()) return;
  std::error_code failure;
  std::filesystem::create_directories(std::filesystem::path(file).parent_path(), failure);
  write_whole_file(file, std::string(kIndexMark) + bytes);
}

}  // namespace

TextIndex index_texts(Communicator& ranks, const TextSource& source, const Vocabulary& vocabulary,
                      const IndexOptions& options) {
  std::string bytes;
  together(ranks, [&] {
    if (ranks.rank() == 0) bytes = kept_index(options.file);
  });
  broadcast_text(ranks, bytes);
  TextIndex index;
  if (!bytes.empty()) {
    together(ranks, [&] {
      index = TextIndex::deserialise(bytes);
      if (index.units.size() != source.units().size())
        throw DataError(fmt::format("'{}' is the index of other texts", options.file),
                        "remove it; it is made again from the texts");
    });
    return index;
  }
  TextIndex mine;
  together(ranks, [&] {
    mine = IndexBuilder(source, vocabulary)
               .run(static_cast<std::size_t>(ranks.rank()), static_cast<std::size_t>(ranks.size()),
                    options.threads);
  });
  const std::vector<std::string> all = gather_texts(ranks, mine.serialise());
  index.units.resize(source.units().size());
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    const TextIndex part = TextIndex::deserialise(all[rank]);
    for (std::size_t unit = rank; unit < part.units.size(); unit += all.size())
      index.units[unit] = part.units[unit];
    index.documents += part.documents;
    index.damaged.add(part.damaged);
  }
  together(ranks, [&] {
    if (ranks.rank() != 0) return;
    if (const std::string damage = index.damaged.to_string(); index.tokens() == 0)
      throw DataError(fmt::format("no row of '{}' has a text{}{}", source.files().front().path,
                                  damage.empty() ? "" : ": ", damage),
                      "name the field or the column of the text");
    bytes = index.serialise();
    keep_index(options.file, bytes);
  });
  broadcast_text(ranks, bytes);
  return TextIndex::deserialise(bytes);
}

}  // namespace choir
