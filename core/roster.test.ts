import fc from "fast-check";
import { describe, expect, it } from "vitest";
import { Roster, type Rostered } from "./roster.ts";

interface Item extends Rostered {
  readonly name: number;
}

describe("roster", () => {
  it("holds what a set would, however items come and go", () => {
    fc.assert(
      fc.property(fc.array(fc.nat(9), { maxLength: 60 }), (steps) => {
        const items = Array.from({ length: 10 }, (_, name): Item => ({ name, rosterPlace: -1 }));
        const roster = new Roster<Item>();
        const expected = new Set<Item>();
        for (const step of steps) {
          const item = items[step] as Item;
          if (expected.has(item)) {
            expect(roster.delete(item)).toBe(expected.delete(item));
          } else {
            expect(roster.delete(item)).toBe(false);
            roster.add(item);
            expected.add(item);
          }
          expect(roster.size).toBe(expected.size);
          expect(new Set(roster.all())).toEqual(expected);
        }
      }),
    );
  });

  it("may be emptied while it is gone through", () => {
    const roster = new Roster<Item>();
    for (let name = 0; name < 5; name += 1) roster.add({ name, rosterPlace: -1 });
    for (const item of roster.all()) roster.delete(item);
    expect(roster.size).toBe(0);
  });
});
