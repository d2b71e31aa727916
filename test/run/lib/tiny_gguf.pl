#!/usr/bin/perl
# GGUF files of tests.
#
#   tiny_gguf.pl make FILE [KEY=VALUE...]   a Llama of 16 and one layer, whose control tokens are the first ids, as SmolLM2's
#                                           are: <|endoftext|> 0, <|im_start|> 1, <|im_end|> 2, then 256 bytes, then "he" 259.
#                                           Further keys: uint32 if the value is a number, else a text; "KEY=" leaves one out
#   tiny_gguf.pl keys FILE                  a line KEY=VALUE for each pair, sorted; of a list, its length and elements
use strict; use warnings;
binmode STDOUT, ":utf8";
my ($what, $path, @more) = @ARGV;

sub text { my $t = $_[0]; utf8::encode($t); return pack("Q<", length $t) . $t }
# The characters that stand for bytes in byte-level BPE.
sub byte_characters {
  my (@of, $n); $n = 0;
  for my $b (0 .. 255) {
    my $shown = ($b >= 33 && $b <= 126) || ($b >= 161 && $b <= 172) || $b >= 174;
    $of[$b] = chr($shown ? $b : 256 + $n++);
  }
  return @of;
}

if ($what eq "make") {
  my @tokens = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", byte_characters(), "he");
  my ($rows, $width, $ffn) = (scalar @tokens, 16, 32);
  my %u32 = ("llama.context_length" => 64, "llama.embedding_length" => $width, "llama.block_count" => 1,
             "llama.feed_forward_length" => $ffn, "llama.attention.head_count" => 2, "llama.attention.head_count_kv" => 2,
             "llama.rope.dimension_count" => 8, "llama.vocab_size" => $rows, "tokenizer.ggml.bos_token_id" => 1,
             "tokenizer.ggml.eos_token_id" => 2);
  my %text = ("general.architecture" => "llama", "tokenizer.ggml.model" => "gpt2", "tokenizer.ggml.pre" => "smollm",
              "tokenizer.chat_template" => "{% for m in messages %}{{'<|im_start|>' + m['role'] + '\\n' + m['content'] + " .
                                           "'<|im_end|>' + '\\n'}}{% endfor %}");
  for (@more) {
    my ($key, $value) = split /=/, $_, 2;
    delete $u32{$key}; delete $text{$key};
    if ($value =~ /^\d+$/) { $u32{$key} = $value } elsif ($value ne "") { $text{$key} = $value }
  }
  my @pairs;
  push @pairs, text($_) . pack("L<L<", 4, $u32{$_}) for sort keys %u32;
  push @pairs, text($_) . pack("L<", 8) . text($text{$_}) for sort keys %text;
  push @pairs, text("llama.attention.layer_norm_rms_epsilon") . pack("L<f<", 6, 1e-5);
  my $list = sub { my ($key, $type, @packed) = @_; push @pairs, text($key) . pack("L<L<Q<", 9, $type, scalar @packed) . join "", @packed };
  $list->("tokenizer.ggml.tokens", 8, map { text($_) } @tokens);
  $list->("tokenizer.ggml.token_type", 5, map { pack "l<", $_ < 3 ? 3 : 1 } 0 .. $#tokens);
  $list->("tokenizer.ggml.merges", 8, text("h e"));
  my @tensors = (["token_embd.weight", $rows, $width], ["output_norm.weight", $width], ["output.weight", $rows, $width],
                 map({ ["blk.0.$_.weight", $width] } "attn_norm", "ffn_norm"),
                 map({ ["blk.0.$_.weight", $width, $width] } "attn_q", "attn_k", "attn_v", "attn_output"),
                 ["blk.0.ffn_gate.weight", $ffn, $width], ["blk.0.ffn_up.weight", $ffn, $width],
                 ["blk.0.ffn_down.weight", $width, $ffn]);
  my ($head, $data, $k) = ("", "", 0);
  for my $tensor (@tensors) {
    my ($name, @shape) = @$tensor; my $count = 1; $count *= $_ for @shape;
    $head .= text($name) . pack("L<", scalar @shape) . pack("Q<*", reverse @shape) . pack("L<Q<", 0, length $data);
    $data .= pack("f<*", map { @shape == 1 ? 1 : 0.1 * sin(0.37 * $_ + $k) } 0 .. $count - 1);
    $data .= "\0" x (-length($data) % 32); ++$k;
  }
  my $file = "GGUF" . pack("L<Q<Q<", 3, scalar @tensors, scalar @pairs) . join("", @pairs) . $head;
  $file .= "\0" x (-length($file) % 32);
  open my $out, ">:raw", $path or die "$path: $!";
  print $out $file, $data;
} elsif ($what eq "keys") {
  open my $in, "<:raw", $path or die "$path: $!";
  local $/; my $all = <$in>; my $at = 16;
  my $take = sub { my ($as, $bytes) = @_; $at += $bytes; return unpack $as, substr $all, $at - $bytes, $bytes };
  my $take_text = sub { my $n = $take->("Q<", 8); my $t = substr $all, $at, $n; $at += $n; utf8::decode($t); return $t };
  my %as = (0 => ["C", 1], 1 => ["c", 1], 2 => ["S<", 2], 3 => ["s<", 2], 4 => ["L<", 4], 5 => ["l<", 4], 6 => ["f<", 4],
            7 => ["C", 1], 10 => ["Q<", 8], 11 => ["q<", 8], 12 => ["d<", 8]);
  my $one = sub { my $type = shift; return $type == 8 ? $take_text->() : $take->(@{$as{$type}}) };
  my @lines;
  for (1 .. $take->("Q<", 8)) {
    my $key = $take_text->(); my $type = $take->("L<", 4);
    if ($type != 9) { push @lines, "$key=" . $one->($type); next }
    my $of = $take->("L<", 4); my $n = $take->("Q<", 8);
    push @lines, "$key=$n: " . join " ", map { $one->($of) } 1 .. $n;
  }
  print "$_\n" for sort map { s/\n/\\n/gr } @lines;
} else { die "make or keys" }
