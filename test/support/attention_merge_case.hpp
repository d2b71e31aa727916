#pragma once
// Attention merged over sets of keys, on any device, against the reference.
#include <limits>

#include "kernels/attention/attention.hpp"
#include "test/support/mirror.hpp"

namespace choir::test {

struct AttentionMergeCase {
  DType dtype;
  std::int64_t batch, queries, heads, width;
  bool first = false;

  void check(Device& device) const {
    SCOPED_TRACE(fmt::format("{} {} x {} queries, {} heads of {}, first {}", name_of(dtype), batch,
                             queries, heads, width, first));
    const DType sums = sum_dtype(dtype);
    const Shape rows{batch * queries, heads * width}, of_lse{batch, heads, queries};
    const HostTensor part = HostTensor::normal(dtype, rows, 1);
    HostTensor part_lse = HostTensor::normal(sums, of_lse, 2),
               lse = HostTensor::normal(sums, of_lse, 3);
    // One query sees nothing of the part, one nothing of those before, one nothing at all.
    for (HostTensor* const x : {&part_lse, &lse})
      for (std::int64_t i = x == &lse ? 1 : 0; i < x->view().count(); i += 7)
        ref::store(x->data(), sums, i, -std::numeric_limits<double>::infinity());
    ref::store(lse.data(), sums, 0, -std::numeric_limits<double>::infinity());
    HostTensor out = HostTensor::normal(sums, rows, 4);
    const HostTensor part64 = part.to(DType::f64), part_lse64 = part_lse.to(DType::f64);
    HostTensor exact = out.to(DType::f64), exact_lse = lse.to(DType::f64);
    ref::attention_merge({.heads = heads,
                          .queries = queries,
                          .part = part64.view(),
                          .part_log_sum_exp = part_lse64.view(),
                          .out = exact.view(),
                          .log_sum_exp = exact_lse.view(),
                          .first = first});
    Mirror mirror(device);
    ops::AttentionMerge merge{.heads = heads, .queries = queries, .first = first};
    merge.part = mirror.in(part), merge.part_log_sum_exp = mirror.in(part_lse);
    merge.out = mirror.io(out), merge.log_sum_exp = mirror.io(lse);
    ops::attention_merge(Stream(device), merge);
    mirror.fetch();
    // Exponents below 10 are rounded once, so weights, below 1, have errors of at most 16
    // roundings; two of them multiply values below 5.
    const double unit = unit_roundoff(sums);
    expect_close(out, exact, 8 * unit, 2 * 5 * 16 * unit, "merged");
    expect_close(lse, exact_lse, 8 * unit, 16 * unit, "log sum exp");
  }
};

}  // namespace choir::test
