//! Special-purpose address ranges, and the IPv4 addresses that hide in IPv6 ones.
//!
//! Pure tables and arithmetic; knows no configuration.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Who may open a special range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// This host; `policy.allow_loopback`.
    Loopback,
    /// A private network; `policy.allow_private`.
    Private,
    /// Nobody in general; a rule in `policy.allow` can.
    Never,
}

/// A range of addresses that is not the public internet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Range {
    /// What it is, with its network, for people.
    pub name: &'static str,
    /// Who may open it.
    pub kind: Kind,
}

struct V4(u32, u32, Kind, &'static str);
struct V6(u128, u32, Kind, &'static str);

const fn v4(a: u8, b: u8, c: u8, d: u8) -> u32 {
    Ipv4Addr::new(a, b, c, d).to_bits()
}

const fn v6(a: u16, b: u16, c: u16) -> u128 {
    Ipv6Addr::new(a, b, c, 0, 0, 0, 0, 0).to_bits()
}

/// RFC 6890 and its successors, as far as a client has no business there.
const V4_RANGES: &[V4] = &[
    V4(v4(0, 0, 0, 0), 8, Kind::Never, "this network, 0.0.0.0/8"),
    V4(
        v4(10, 0, 0, 0),
        8,
        Kind::Private,
        "private network, 10.0.0.0/8",
    ),
    V4(
        v4(100, 64, 0, 0),
        10,
        Kind::Private,
        "carrier-grade NAT, 100.64.0.0/10",
    ),
    V4(v4(127, 0, 0, 0), 8, Kind::Loopback, "loopback, 127.0.0.0/8"),
    V4(
        v4(169, 254, 0, 0),
        16,
        Kind::Never,
        "link-local, 169.254.0.0/16",
    ),
    V4(
        v4(172, 16, 0, 0),
        12,
        Kind::Private,
        "private network, 172.16.0.0/12",
    ),
    V4(
        v4(192, 0, 0, 0),
        24,
        Kind::Never,
        "protocol assignments, 192.0.0.0/24",
    ),
    V4(
        v4(192, 168, 0, 0),
        16,
        Kind::Private,
        "private network, 192.168.0.0/16",
    ),
    V4(
        v4(198, 18, 0, 0),
        15,
        Kind::Never,
        "benchmarking, 198.18.0.0/15",
    ),
    V4(v4(224, 0, 0, 0), 4, Kind::Never, "multicast, 224.0.0.0/4"),
    V4(v4(240, 0, 0, 0), 4, Kind::Never, "reserved, 240.0.0.0/4"),
];

/// The first match counts. IPv4-mapped addresses are not here: to the kernel they are the IPv4 address they carry.
const V6_RANGES: &[V6] = &[
    V6(0, 128, Kind::Never, "unspecified, ::"),
    V6(1, 128, Kind::Loopback, "loopback, ::1"),
    V6(0, 96, Kind::Never, "IPv4-compatible, ::/96"),
    V6(
        0xffff_0000_0000_0000,
        96,
        Kind::Never,
        "IPv4-translated, ::ffff:0:0:0/96",
    ),
    V6(v6(0x64, 0xff9b, 0), 96, Kind::Never, "NAT64, 64:ff9b::/96"),
    V6(
        v6(0x64, 0xff9b, 1),
        48,
        Kind::Never,
        "local NAT64, 64:ff9b:1::/48",
    ),
    V6(v6(0x2001, 0, 0), 32, Kind::Never, "Teredo, 2001::/32"),
    V6(v6(0x2002, 0, 0), 16, Kind::Never, "6to4, 2002::/16"),
    V6(v6(0xfc00, 0, 0), 7, Kind::Private, "unique local, fc00::/7"),
    V6(v6(0xfe80, 0, 0), 10, Kind::Never, "link-local, fe80::/10"),
    V6(v6(0xfec0, 0, 0), 10, Kind::Never, "site-local, fec0::/10"),
    V6(v6(0xff00, 0, 0), 8, Kind::Never, "multicast, ff00::/8"),
];

/// The special range that holds this very address, if any. Does not look at carried addresses: see [`forms`].
#[must_use]
pub fn special_range(ip: IpAddr) -> Option<Range> {
    match ip {
        IpAddr::V4(ip) => V4_RANGES
            .iter()
            .find(|V4(base, prefix, ..)| (ip.to_bits() ^ base) >> (32 - prefix) == 0)
            .map(|V4(_, _, kind, name)| Range { name, kind: *kind }),
        IpAddr::V6(ip) => V6_RANGES
            .iter()
            .find(|V6(base, prefix, ..)| (ip.to_bits() ^ base) >> (128 - prefix) == 0)
            .map(|V6(_, _, kind, name)| Range { name, kind: *kind }),
    }
}

/// The address itself and every IPv4 address that it carries: mapped, compatible, translated, NAT64 (RFC 6052), 6to4
/// (RFC 3056), Teredo (RFC 4380: server and client).
#[must_use]
pub fn forms(ip: IpAddr) -> Vec<IpAddr> {
    let IpAddr::V6(v6) = ip else {
        return vec![ip];
    };
    if let Some(mapped) = v6.to_ipv4_mapped() {
        return vec![IpAddr::V4(mapped), ip];
    }
    let bits = v6.to_bits();
    let carried = |shift: u32| Ipv4Addr::from_bits(low_word(bits >> shift));
    let mut forms = vec![ip];
    let mut add = |ip: Ipv4Addr| forms.push(IpAddr::V4(ip));
    let top = v6.segments();
    match top {
        // `::` and `::1` are themselves, not carriers.
        [0, 0, 0, 0, 0, 0, 0, 0 | 1] => {}
        [0, 0, 0, 0, 0 | 0xffff, 0, ..] | [0x64, 0xff9b, 0, 0, 0, 0, ..] => {
            add(carried(0));
        }
        [0x64, 0xff9b, 1, ..] => {
            // The length of the prefix is local: /96 and, around the reserved octet, /48 are possible.
            add(carried(0));
            let split = (low_word(bits >> 64) & 0xffff) << 16 | (low_word(bits >> 40) & 0xffff);
            add(Ipv4Addr::from_bits(split));
        }
        [0x2002, ..] => add(carried(80)),
        [0x2001, 0, ..] => {
            add(carried(64));
            add(Ipv4Addr::from_bits(!low_word(bits)));
        }
        _ => {}
    }
    forms
}

/// The lowest 32 bits.
fn low_word(bits: u128) -> u32 {
    u32::try_from(bits & u128::from(u32::MAX)).unwrap_or_default()
}
