/** Where a roster keeps it; -1 while it is in none. */
export interface Rostered {
  rosterPlace: number;
}

/**
 * Who is here now, in no order; an item is in one roster at a time. For what is added and removed
 * on every call: a `Set` makes itself a new table every few removals, and the old tables, once the
 * garbage collector has moved them to its old generation, hold on to everything that was in them.
 */
export class Roster<T extends Rostered> {
  readonly #items: T[] = [];

  get size(): number {
    return this.#items.length;
  }

  add(item: T): void {
    item.rosterPlace = this.#items.length;
    this.#items.push(item);
  }

  /** False when it was not here. */
  delete(item: T): boolean {
    const place = item.rosterPlace;
    if (this.#items[place] !== item) return false;
    const last = this.#items.pop() as T;
    if (last !== item) {
      this.#items[place] = last;
      last.rosterPlace = place;
    }
    item.rosterPlace = -1;
    return true;
  }

  /** Of this moment: items may be removed while it is gone through. */
  all(): readonly T[] {
    return [...this.#items];
  }
}
