#include "src/train/step/product_timing.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>

#include "choir/core/error.hpp"
#include "src/comm/agreement.hpp"
#include "src/core/json_value.hpp"
#include "src/core/quantities.hpp"
#include "src/device/cuda.hpp"
#include "src/run/step_plan.hpp"

namespace choir {
namespace {

using nlohmann::ordered_json;

/// The first proposal is the library's own choice. Times of a few milliseconds repeat to a percent
/// or two, so smaller gains are ignored.
constexpr double kWorthwhile = 0.97;

/// The device and the library whose times were measured.
struct Maker {
  std::string card, driver, library;
  friend bool operator==(const Maker&, const Maker&) = default;
  std::string text() const { return fmt::format("{}, driver {}, {}", card, driver, library); }
};

Maker maker_of(const Device& device) {
  return {.card = cuda::card_of(device)->name,
          .driver = cuda::availability().driver,
          .library = ops::product_library(device)};
}

struct Timed {
  int way = 0;
  std::vector<double> seconds;  // of every proposal, infinite if it fails; empty: not timed
};
using Table = std::map<ops::Product, Timed>;

int fastest(const std::vector<double>& seconds) {
  int best = -1;
  for (int i = 0; i < static_cast<int>(seconds.size()); ++i) {
    const double own = seconds[static_cast<std::size_t>(i)];
    if (!std::isfinite(own)) continue;
    if (best < 0 || own < kWorthwhile * seconds[static_cast<std::size_t>(best)]) best = i;
  }
  return std::max(best, 0);
}

Table timed_here(Device& device, const std::set<ops::Product>& asked) {
  Table table;
  const Stream stream(device);
  for (const ops::Product& product : asked) {
    Timed& timed = table[product];
    if (ops::product_bytes(product) <= free_for_plans(device))
      timed.seconds = ops::time_proposals(stream, product);
    timed.way = fastest(timed.seconds);
  }
  return table;
}

ordered_json json_of(const Table& table, const Maker& maker) {
  ordered_json json{{"card", maker.card}, {"driver", maker.driver}, {"library", maker.library}};
  ordered_json& list = json["products"] = ordered_json::array();
  for (const auto& [product, timed] : table) {
    ordered_json times = ordered_json::array();
    for (const double s : timed.seconds)
      times.push_back(std::isfinite(s) ? ordered_json(1e3 * s) : ordered_json());
    list.push_back({{"product", to_string(product)}, {"way", timed.way}, {"milliseconds", times}});
  }
  return json;
}

/// Reads a table if it has the same maker and contains all products; otherwise `why_not` is set.
std::optional<Table> kept(const StoredProducts& stored, const Maker& maker,
                          const std::set<ops::Product>& asked, std::string& why_not) {
  if (stored.table.empty()) {
    why_not = "has no choice of algorithms for products";
    return {};
  }
  try {
    const ordered_json json = read_ordered_json(stored.table, stored.source);
    const Maker then{json.at("card"), json.at("driver"), json.at("library")};
    if (!(then == maker)) {
      why_not = fmt::format("was written on {}, but this is {}", then.text(), maker.text());
      return {};
    }
    std::map<std::string, Timed> by_name;
    for (const ordered_json& line : json.at("products")) {
      Timed timed{.way = line.at("way")};
      for (const ordered_json& time : line.at("milliseconds"))
        timed.seconds.push_back(time.is_null() ? std::numeric_limits<double>::infinity()
                                               : 1e-3 * time.get<double>());
      if (timed.way < 0 || timed.way >= ops::kMostProposals)
        throw DataError(
            fmt::format("way {} is not one of the {} proposals", timed.way, ops::kMostProposals));
      by_name[line.at("product")] = timed;
    }
    Table table;
    for (const ops::Product& product : asked) {
      const auto found = by_name.find(to_string(product));
      if (found == by_name.end()) {
        why_not = fmt::format("does not contain {}", to_string(product));
        return {};
      }
      table[product] = found->second;
    }
    return table;
  } catch (const std::exception& error) {
    why_not = fmt::format("is damaged ({})", plain_cause(error));
    return {};
  }
}

std::string line_of(const ops::Product& product, const Timed& timed) {
  if (timed.seconds.empty())
    return fmt::format("\n  not timed               {}", to_string(product));
  const double own = timed.seconds[static_cast<std::size_t>(timed.way)];
  const auto first = std::find_if(timed.seconds.begin(), timed.seconds.end(),
                                  [](double s) { return std::isfinite(s); });
  return fmt::format("\n  proposal {} {:9.4f} ms {}{}", timed.way + 1, 1e3 * own,
                     to_string(product),
                     own < *first ? fmt::format(" ({:.4f} ms by the first)", 1e3 * *first) : "");
}

std::string report_of(const Table& table, const Maker& maker, const std::string& source) {
  const auto others = std::count_if(table.begin(), table.end(),
                                    [](const auto& entry) { return entry.second.way > 0; });
  std::string text = fmt::format("products: {} on {}, {}; {} do not use the first proposal",
                                 table.size(), maker.text(), source, others);
  for (const auto& [product, timed] : table) text += line_of(product, timed);
  return text;
}

// Products are sent as raw memory between processes of one program.
template <class T>
std::string bytes_of(const std::vector<T>& list) {
  static_assert(std::is_trivially_copyable_v<T>);
  return {reinterpret_cast<const char*>(list.data()), list.size() * sizeof(T)};
}
template <class T>
std::vector<T> list_of(std::string_view bytes) {
  std::vector<T> list(bytes.size() / sizeof(T));
  std::memcpy(list.data(), bytes.data(), bytes.size());
  return list;
}

struct Choice {
  ops::Product product;
  int way = 0;
};

/// The table of all ranks' products, on rank 0.
Table table_for(Device& device, const Maker& maker, const std::set<ops::Product>& asked,
                const std::vector<StoredProducts>& stored, ProductTiming& result) {
  std::string why_not;
  for (const StoredProducts& each : stored) {
    std::string why;
    if (auto table = kept(each, maker, asked, why)) {
      result.report = report_of(*table, maker, "as in " + each.source);
      return *table;
    }
    why_not += fmt::format("{}{} {}", why_not.empty() ? "" : ", and ", each.source, why);
  }
  const double start = now_seconds();
  Table table = timed_here(device, asked);
  result.report = report_of(table, maker, fmt::format("timed in {:.1f} s", now_seconds() - start));
  if (!why_not.empty())
    result.warning =
        why_not +
        ": the products were timed again, so from here on sums may differ by roundings "
        "from those of an uninterrupted run";
  return table;
}

}  // namespace

ProductTiming time_products(Mesh& mesh, Device& device, const std::set<ops::Product>& asked,
                            const std::vector<StoredProducts>& stored) {
  if (device.kind() != DeviceKind::cuda)
    return {.report = fmt::format("products: not timed on {}", name_of(device.kind())),
            .warning = {},
            .table = {}};
  Communicator& world = mesh.world();
  const Maker maker = maker_of(device);
  const std::vector<std::string> makers = gather_texts(world, maker.text());
  const std::vector<std::string> lists =
      gather_texts(world, bytes_of(std::vector<ops::Product>(asked.begin(), asked.end())));
  ProductTiming result;
  std::vector<Choice> choices;
  together(world, [&] {
    if (mesh.rank() != 0) return;
    for (std::size_t r = 0; r < makers.size(); ++r)
      if (makers[r] != makers[0]) {
        result.report = fmt::format("products: not timed: rank 0 has {}, rank {} has {}", makers[0],
                                    r, makers[r]);
        return;
      }
    std::set<ops::Product> all;
    for (const std::string& list : lists)
      for (const ops::Product& product : list_of<ops::Product>(list)) all.insert(product);
    const Table table = table_for(device, maker, all, stored, result);
    result.table = dumped(json_of(table, maker), 1);
    for (const auto& [product, timed] : table) choices.push_back({product, timed.way});
  });
  std::string bytes = bytes_of(choices);
  broadcast_text(world, bytes);
  ops::ProductChoices chosen;
  for (const Choice& choice : list_of<Choice>(bytes)) chosen[choice.product] = choice.way;
  ops::choose_products(device, chosen);
  return result;
}

}  // namespace choir
